"""The package under test is that of the build folder; HEADRACE_PYTHON may name another folder that holds it."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(os.environ.get("HEADRACE_PYTHON", ROOT / "build/python")).resolve()

# What is tested, and the modules that tests share; importlib's import mode leaves their folders out.
sys.path[:0] = [str(PACKAGE), str(Path(__file__).resolve().parent), str(ROOT / "tests/cli"), str(ROOT / "tests/servers")]

import checkpoints  # noqa: E402
import processes  # noqa: E402
from model_server import ModelServer  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def _package_is_there():
    if not list(PACKAGE.glob("headrace/_core.*.so")):
        pytest.fail(f"{PACKAGE} holds no package: ./run build makes it, HEADRACE_PYTHON may name another folder")


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Path:
    """A folder with one file of three tensors."""
    tensors = [
        checkpoints.tensor("layers.0.weight", "F32", [64, 16]),
        checkpoints.tensor("layers.1.weight", "BF16", [8, 8]),
        checkpoints.tensor("count", "I64", [10]),
    ]
    return checkpoints.write_single(tmp_path_factory.mktemp("small"), tensors, {"format": "pt"})


@pytest.fixture(scope="session")
def large(tmp_path_factory) -> Path:
    """A folder with two files of 24 MB together: more than what comes with the headers."""
    shards = [[checkpoints.tensor(f"layers.{shard}.{n}.weight", "F32", [1000, 1000]) for n in range(3)] for shard in range(2)]
    return checkpoints.write_sharded(tmp_path_factory.mktemp("large"), shards)


@pytest.fixture
def held(large):
    """A server of the large checkpoint that gives its headers, and then nothing before `release()`."""
    with ModelServer(large) as server:
        server.hold("/model-00002-of-00002.safetensors", after=1000, start=65536)
        yield server


@pytest.fixture
def nothing_leaks():
    """Checks that as many descriptors and threads are left as there were, once the engine itself is up."""
    processes.warm_up()
    before = processes.held()
    yield
    processes.wait_until(lambda: processes.held() == before, lambda: f"{before}\n{processes.held()}")
