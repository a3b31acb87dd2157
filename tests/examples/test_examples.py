"""The examples run, and the guide's code compiles."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/cli"))

import checkpoints  # noqa: E402

TENSORS = [
    checkpoints.tensor("embed.weight", "BF16", [300, 40]),
    checkpoints.tensor("layers.0.weight", "F32", [64, 16]),
    checkpoints.tensor("norm.bias", "F16", [10]),
]


def build_folder():
    return Path(os.environ.get("HEADRACE_CLI", ROOT / "build/cli/headrace")).resolve().parents[1]


def example(name):
    path = build_folder() / "examples" / name
    if not path.exists():
        pytest.skip("built without examples")
    return path


def run(name, *arguments):
    return subprocess.run([example(name), *map(str, arguments)], capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return checkpoints.write_sharded(tmp_path_factory.mktemp("model"), [TENSORS[:2], TENSORS[2:]])


def test_the_minimal_loader_prints_every_tensor(model):
    done = run("minimal", model)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(f"{name} {dtype} {len(data)}" for name, dtype, _, data in TENSORS)


def test_the_minimal_loader_is_short():
    source = (ROOT / "examples/minimal.cpp").read_text()
    assert len(source.splitlines()) <= 30


@pytest.mark.parametrize("count", [1, 3])
def test_plain_threads_load_all_of_a_model(tmp_path, count):
    folder = checkpoints.write_single(tmp_path, TENSORS[:count])
    done = run("plain_thread", folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{count} tensors, {sum(len(data) for *_, data in TENSORS[:count])} bytes\n"


@pytest.mark.parametrize("name", ["minimal", "plain_thread", "cuda"])
def test_an_example_says_what_is_wrong_in_one_line(name, tmp_path):
    done = run(name, tmp_path / "nothing here")
    assert done.returncode == 1
    assert re.fullmatch(r"not_found: .*nothing here.*\n", done.stderr)
    assert run(name).returncode == 2


def test_the_cuda_example_loads_or_says_what_is_missing(model):
    done = run("cuda", model)
    if done.returncode == 0:
        assert f"{len(TENSORS)} tensors on cuda:0" in done.stdout
    else:
        assert done.returncode == 3, done.stderr
        assert done.stderr.startswith("unsupported: ")
        assert "libcuda.so.1" in done.stderr


def test_every_example_stands_in_the_list():
    listed = (ROOT / "examples/README.md").read_text()
    for source in (ROOT / "examples").glob("*.cpp"):
        assert f"[{source.name}]({source.name})" in listed


# --- The guide --------------------------------------------------------------------------------------------------------

GUIDE_HEADERS = ["headrace/headrace.hpp", "chrono", "iostream", "map", "memory", "stop_token", "string"]


def pieces_of_the_guide(kind):
    """The C++ of the guide whose fence says `cpp` and then `kind`."""
    found = re.findall(r"^```cpp *(\w*)\n(.*?)^```", (ROOT / "docs/guide.md").read_text(), re.M | re.S)
    return [text for said, text in found if said == kind]


def compile_pieces(kind, headers, *more):
    pieces = pieces_of_the_guide(kind)
    assert pieces
    # Each in a namespace of its own, after the headers.
    lines = [f"#include <{header}>" for header in headers] + ["using namespace headrace::literals;"]
    for number, text in enumerate(pieces):
        lines.append(f"namespace piece{number} {{\n{text}\n}}")
    compiler = json.loads((build_folder() / "meson-info/intro-compilers.json").read_text())["host"]["cpp"]["exelist"]
    command = [*compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", *more, "-fsyntax-only", "-xc++", "-"]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_code_of_the_guide_compiles():
    compile_pieces("", GUIDE_HEADERS)


def test_the_code_of_the_guide_about_asio_compiles():
    compile_pieces("asio", [*GUIDE_HEADERS, "headrace/asio.hpp", "boost/asio/awaitable.hpp", "boost/asio/use_awaitable.hpp"])


def test_the_code_of_the_guide_about_torch_compiles():
    pc_file = build_folder() / "meson-private/headrace-torch.pc"
    if not pc_file.exists():
        pytest.skip("built without torch")
    torch = re.search(r"^torch_dir=(.*)$", pc_file.read_text(), re.M).group(1)
    system = [f"-isystem{torch}/include", f"-isystem{torch}/include/torch/csrc/api/include"]
    compile_pieces("torch", [*GUIDE_HEADERS, "headrace/torch/load_into.hpp", "headrace/torch/state_dict.hpp"], *system)
