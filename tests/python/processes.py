"""What a process holds, and other processes that run a piece of Python."""

import gc
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import checkpoints
import headrace
import uvloop

PACKAGE = Path(headrace.__file__).resolve().parents[1]


# The beginning of a program that is interrupted: whoever starts the tests in the background ignores Ctrl-C for all of them.
INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
"""


def wait_until(condition: Callable[[], bool], what: Callable[[], str] | str = "it did not come about", limit: float = 20) -> None:
    """Polls, since what is waited for happens elsewhere."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(0.01)


def held() -> tuple[list[str], list[str]]:
    """Which descriptors and threads the process has, but for those that the engine keeps (its threads, those of the kernel that
    work for it, idle connections) and those of the tests' servers."""
    gc.collect()
    names = []
    for number in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    threads = []
    served = {str(thread.native_id) for thread in threading.enumerate() if "process_request_thread" in thread.name}
    for number in set(os.listdir("/proc/self/task")) - served:
        try:
            threads.append(Path(f"/proc/self/task/{number}/comm").read_text().strip())
        except OSError:
            continue
    return (
        sorted(re.sub(r"\d+", "N", name) for name in names if not name.startswith("socket:")),
        sorted(name for name in threads if not name.startswith(("headrace", "iou-"))),
    )


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
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(stream())
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
