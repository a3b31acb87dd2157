"""tests/gpu/check, with the driver of the tests in the place of a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from headrace_program import LIMIT, binary

BUILD = binary().parents[1]
FAKE = BUILD / "tests" / "cuda"
CHECK = Path(__file__).resolve().parents[1] / "gpu" / "check"


def check(*arguments, **settings) -> subprocess.CompletedProcess:
    environment = {f"FAKE_CUDA_{name.upper()}": str(value) for name, value in settings.items()}
    return subprocess.run(
        [sys.executable, CHECK, "--build", BUILD, "--limit", str(4 * LIMIT), *arguments],
        env={**os.environ, "LD_LIBRARY_PATH": str(FAKE), **environment},
        capture_output=True,
        text=True,
        timeout=5 * LIMIT,
    )


@pytest.fixture(autouse=True)
def _programs_are_there():
    if not (FAKE / "libcuda.so.1").exists() or not (BUILD / "tests" / "gpu" / "gpu_bandwidth").exists():
        pytest.skip("the fake driver is not built: no headers of CUDA")


def test_all_of_it_passes():
    outcome = check("--size", "64MiB", "--unjudged", devices=2)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stdout.endswith(" passed, 0 failed\n")
    assert "FAILED" not in outcome.stdout


def test_it_fails_where_there_is_no_device():
    outcome = check("--size", "64MiB", "--unjudged", devices=0)
    assert outcome.returncode == 1
    assert "FAILED  there is a device" in outcome.stdout
    assert outcome.stdout.endswith("0 passed, 1 failed\n")


def test_it_fails_where_copies_bring_nothing():
    outcome = check("--size", "32MiB", "--unjudged", move=0)
    assert outcome.returncode == 1
    failed = [line for line in outcome.stdout.splitlines() if line.startswith("FAILED")]
    assert len(failed) >= 3
    assert any("digests" in line for line in failed)
