"""What a process holds, and other processes that run a piece of Python."""

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import headrace

import checkpoints

PACKAGE = Path(headrace.__file__).resolve().parents[1]


def wait_until(condition: Callable[[], bool], what: Callable[[], str] | str = "it did not come about", limit: float = 20) -> None:
    """Polls, since what is waited for happens elsewhere."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(0.01)


def held() -> tuple[int, int]:
    """How many descriptors and threads the process has. Idle connections are the engine's own for a few seconds, and do not
    count."""
    gc.collect()
    names = []
    for number in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    return sum(not name.startswith("socket:") for name in names), len(os.listdir("/proc/self/task"))


def warm_up() -> None:
    """Has the engine, and asyncio, start what they keep."""
    import asyncio
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        checkpoints.write_single(Path(folder), [checkpoints.tensor("a", "U8", [8])])

        async def stream() -> None:
            async for _ in headrace.stream(folder):
                pass

        asyncio.run(stream())
        for _ in headrace.stream(folder):
            pass


def run_python(code: str, *arguments: object, limit: float = 120, **options) -> subprocess.CompletedProcess[str]:
    """Runs a piece of Python in a process of its own that can import headrace and what tests share."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=limit,
        env=environment(),
        **options,
    )


def environment() -> dict[str, str]:
    paths = [str(PACKAGE), *(path for path in sys.path if "/tests/" in f"{path}/")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
