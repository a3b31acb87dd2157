import os
import sys
from pathlib import Path

import pytest

# The modules that the tests share; importlib's import mode leaves their folder out.
sys.path.insert(0, str(Path(__file__).resolve().parent))

import checkpoints  # noqa: E402
from headrace_program import Program, binary, has_io_uring  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def _program_is_there():
    if not os.access(binary(), os.X_OK):
        pytest.fail(f"{binary()} is not there: ./run build makes it, HEADRACE_CLI may name another")


@pytest.fixture(params=["uring", "epoll"])
def headrace(request) -> Program:
    """The program, under each backend."""
    if request.param == "uring" and not has_io_uring():
        pytest.skip("io_uring is not allowed here")
    return Program(HEADRACE_IO=request.param)


@pytest.fixture
def headrace_once() -> Program:
    """The program, for what does not depend on the backend."""
    return Program()


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Path:
    """A folder with one file of three tensors."""
    tensors = [
        checkpoints.tensor("layers.0.weight", "F32", [64, 16]),
        checkpoints.tensor("layers.1.weight", "BF16", [8, 8]),
        checkpoints.tensor("norm.bias", "F16", [10]),
    ]
    return checkpoints.write_single(tmp_path_factory.mktemp("small"), tensors, {"format": "pt"})


@pytest.fixture(scope="session")
def large(tmp_path_factory) -> Path:
    """A folder with one file of 24 MB: more than what comes with the headers."""
    tensors = [checkpoints.tensor(f"layers.{number}.weight", "F32", [1000, 1000]) for number in range(6)]
    return checkpoints.write_single(tmp_path_factory.mktemp("large"), tensors)
