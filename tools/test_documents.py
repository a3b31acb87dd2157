"""What the documents say is true: tests and files that they name exist, links lead somewhere, contracts can be rendered."""

import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[1]


def names_of_tests():
    """The names of all doctest cases, with what C++ does to adjacent and escaped literals undone."""
    names = set()
    for source in (ROOT / "tests").rglob("*.cpp"):
        for literals in re.findall(r'TEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)\)', source.read_text()):
            names.add("".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals)).replace('\\"', '"'))
    return names


def test_every_fault_has_a_test_that_exists():
    known = names_of_tests()
    rows = [line for line in (ROOT / "docs/faults.md").read_text().splitlines() if re.match(r"\| \d+ \|", line)]
    assert [int(row.split("|")[1]) for row in rows] == list(range(1, 31))
    for row in rows:
        named = re.findall(r"`([^`]+)`", row.rsplit("|", 2)[1])
        assert named, f"no test is named: {row}"
        assert [name for name in named if name not in known] == [], row


# --- Links ------------------------------------------------------------------------------------------------------------


def documents():
    """All Markdown files of ours."""
    folders = [".", "docs", "bench", "examples", "python", "tests"]
    return sorted(path for folder in folders for path in (ROOT / folder).glob("*.md"))


def without_code(text):
    """Markdown without what stands in fences and backticks: links there are none."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.M | re.S))


def anchors_of(path):
    """The anchors that a renderer makes of a document's headings."""
    text = re.sub(r"^(```|~~~).*?^\1", "", path.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#{1,6} +(.+?) *#*$", text, re.M)
    plain = (re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_in_a_document_leads_somewhere(path):
    wrong = []
    for target in re.findall(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)", without_code(path.read_text())):
        if re.match(r"[a-z+]+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / unquote(file)).resolve() if file else path
        if not found.exists() or not found.is_relative_to(ROOT):
            wrong.append(target)
        elif anchor and found.suffix == ".md" and anchor not in anchors_of(found):
            wrong.append(target)
    assert wrong == []


def test_the_files_that_documents_name_exist():
    """`lib/stream/open.cpp` and the like, whole paths from the top."""
    wrong = []
    for path in documents():
        if path.name == "CHANGELOG.md":
            continue
        for name in re.findall(r"`((?:lib|include|tests|tools|docs|examples|cli|bench)/[\w./-]+\.\w+)`", path.read_text()):
            if not (ROOT / name).exists():
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert wrong == []


def test_every_room_stands_in_the_architecture_and_in_its_picture():
    text = (ROOT / "docs/architecture.md").read_text()
    picture = ElementTree.parse(ROOT / "docs/architecture.svg")
    words = {"".join(node.itertext()).strip() for node in picture.iter("{http://www.w3.org/2000/svg}text")}
    for folder in sorted((ROOT / "include/headrace").iterdir()):
        if folder.is_dir():
            assert re.search(rf"^\|.*`{folder.name}`.*\|", text, re.M), f"no row for {folder.name}"
            assert folder.name in words, f"{folder.name} is not in the picture"


# --- The newcomer's page ----------------------------------------------------------------------------------------------


def test_the_readme_shows_the_minimal_example_as_it_is():
    source = (ROOT / "examples/minimal.cpp").read_text()
    shown = re.findall(r"^```cpp\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert any(block.strip() in source for block in shown if "main(" in block)


def test_the_public_headers_render_without_a_warning():
    if not shutil.which("doxygen"):
        pytest.skip("needs doxygen: ./run docs installs it")
    (ROOT / "build/docs").mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["doxygen", "docs/Doxyfile"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert (ROOT / "build/docs/html/classheadrace_1_1model.html").exists()
