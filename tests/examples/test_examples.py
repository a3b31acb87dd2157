"""The examples run, and the guide's code compiles."""

import concurrent.futures
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/cli"), str(ROOT / "tests/examples")]

import checkpoints  # noqa: E402
from model_server import ModelServer  # noqa: E402
from service import Service  # noqa: E402

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


# --- The service ------------------------------------------------------------------------------------------------------


@pytest.fixture
def service(model):
    with Service(example("http_service"), model) as running:
        yield running


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Two folders whose tensors have the same names and other bytes; for each, the digests by name."""
    made = []
    for number in range(2):
        tensors = [
            (name, dtype, shape, checkpoints.noise(len(data), f"{name} {number}")) for name, dtype, shape, data in TENSORS
        ]
        folder = checkpoints.write_single(tmp_path_factory.mktemp(f"model{number}"), tensors)
        made.append((folder, checkpoints.expected_digests(folder)))
    return made


def test_the_service_tells_shape_dtype_and_digest(service, model):
    digests = checkpoints.expected_digests(model)
    for name, dtype, shape, _ in TENSORS:
        status, told = service.get(f"/weights/{name}")
        assert status == 200
        assert told == {"name": name, "dtype": dtype, "shape": shape, "sha256": digests[name], "version": 1}
    status, told = service.get("/model")
    assert (status, told["tensors"], told["bytes"]) == (200, len(TENSORS), sum(len(data) for *_, data in TENSORS))
    assert service.get("/weights/%65mbed.weight")[0] == 200


def test_the_service_refuses_what_it_does_not_know(service):
    assert service.get("/weights/none")[0] == 404
    assert service.get("/elsewhere")[0] == 404
    assert service.ask("DELETE", "/model")[0] == 405
    for body in ("", "{", "[]", '{"uri": 1}', "x" * 40_000):
        assert service.ask("POST", "/load", body)[0] in (400, None)
    assert service.get("/model")[0] == 200


def test_a_model_that_cannot_be_loaded_leaves_the_old_one(service, tmp_path):
    before = service.get("/model")
    status, told = service.load(tmp_path / "nowhere")
    assert (status, told["error"]) == (400, "not_found")
    broken = checkpoints.write_single(tmp_path / "broken", TENSORS)
    (broken / "model.safetensors").write_bytes(b"\xff" * 100)
    status, told = service.load(broken)
    assert (status, told["error"]) == (502, "invalid_safetensors")
    assert service.get("/model") == before


def test_no_answer_fails_or_is_of_two_models_while_the_model_is_swapped_twenty_times(service, models):
    swaps = 20
    over = threading.Event()
    loaded = {1: checkpoints.expected_digests(service.model)}

    def ask(number):
        answers, name = [], TENSORS[number % len(TENSORS)][0]
        with service.client() as client:
            while not over.is_set():
                answers.append(client.ask("GET", f"/weights/{name}"))
            # And once more: of the last model.
            answers.append(client.ask("GET", f"/weights/{name}"))
        return name, answers

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, number) for number in range(4)]
        try:
            for number in range(swaps):
                folder, digests = models[number % 2]
                status, told = service.load(folder)
                assert status == 200, told
                assert told["version"] == number + 2
                loaded[told["version"]] = digests
        finally:
            over.set()
        for one in asking:
            name, answers = one.result()
            versions = [told.get("version") for status, told in answers if status == 200]
            assert len(versions) == len(answers)
            assert versions == sorted(versions)
            assert versions[-1] == swaps + 1
            assert all(told["sha256"] == loaded[told["version"]][name] for _, told in answers)


def test_one_load_at_a_time(service, models):
    folder = models[0][0]
    with ModelServer(folder.parent) as server:
        server.hold(f"/{folder.name}/model.safetensors", after=1)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            first = pool.submit(service.load, f"{server.url}/{folder.name}")
            assert server.held.wait(60)
            assert service.load(models[1][0])[0] == 409
            assert service.get("/model")[0] == 200
            server.release()
            assert first.result()[0] == 200


def test_the_service_ends_at_a_signal_also_while_a_model_is_being_loaded(model, models):
    folder = models[0][0]
    with ModelServer(folder.parent) as server, Service(example("http_service"), model) as service:
        server.hold(f"/{folder.name}/model.safetensors", after=1)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(service.load, f"{server.url}/{folder.name}")
            assert server.held.wait(60)
            assert service.stop() == 0


def test_the_service_does_not_start_without_a_model(tmp_path):
    done = run("http_service", tmp_path / "nothing here")
    assert done.returncode == 1
    assert done.stderr.startswith("not_found: ")
    assert run("http_service").returncode == 2
    assert run("http_service", tmp_path, "70000").returncode == 2


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
