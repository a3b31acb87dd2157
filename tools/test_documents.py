"""What the documents say about tests is true: each one that they name exists."""

import re
from pathlib import Path

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
