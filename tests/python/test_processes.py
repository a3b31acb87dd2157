"""Streams in forked and spawned processes, and in those that end."""

import subprocess
import sys

import processes
import pytest

FORK = """
import os, sys, headrace
folder, inherited = sys.argv[1], sys.argv[2] == "True"
streamer = headrace.ModelStreamer(folder)
expected = {name: bytes(tensor.reshape(-1)[:4].numpy()) for name, tensor in streamer.stream_sync()}
open_stream = streamer.stream_sync()
if inherited:
    next(open_stream)
child = os.fork()
if child == 0:
    status = 1
    try:
        found = {name: bytes(tensor.reshape(-1)[:4].numpy()) for name, tensor in streamer.stream_sync()}
        status = 0 if found == expected else 2
        if inherited:
            try:
                list(open_stream)
                status = 3
            except headrace.CancelledError:
                pass
    finally:
        os._exit(status)
assert os.waitpid(child, 0)[1] == 0
rest = list(open_stream)
assert len(rest) == len(expected) - inherited, len(rest)
"""


@pytest.mark.parametrize("inherited", [False, True])
def test_a_forked_child_streams_and_so_does_its_parent(large, inherited):
    done = processes.run_python(FORK, large, inherited)
    assert done.returncode == 0, done.stderr


def test_a_forked_child_may_end_as_any_interpreter_does(large):
    code = """
import os, sys, headrace
expected = sorted(tensor.name for tensor in headrace.stream(sys.argv[1]))
for streams in (False, True):
    child = os.fork()
    if child == 0:
        if streams:
            assert sorted(tensor.name for tensor in headrace.stream(sys.argv[1])) == expected
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
assert sorted(tensor.name for tensor in headrace.stream(sys.argv[1])) == expected
"""
    done = processes.run_python(code, large, limit=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_child_that_is_forked_inside_an_event_loop_leaves_the_parents_alone(large):
    code = """
import asyncio, gc, os, sys, headrace
async def main():
    stream = headrace.ModelStreamer(sys.argv[1]).stream()
    names = [(await anext(stream))[0]]
    child = os.fork()
    if child == 0:
        del stream
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    names += [name async for name, _ in stream]
    assert len(names) == 6, names
asyncio.run(asyncio.wait_for(main(), 60))
"""
    done = processes.run_python(code, large)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_multiprocessing_stream_with_a_streamer_that_they_are_sent(large, tmp_path, method):
    script = tmp_path / "script.py"
    script.write_text(
        """
import multiprocessing, sys
import headrace
def count(streamer):
    return sorted(name for name, _ in streamer.stream_sync())
if __name__ == "__main__":
    streamer = headrace.ModelStreamer(sys.argv[1])
    expected = count(streamer)
    with multiprocessing.get_context(sys.argv[2]).Pool(2) as pool:
        assert pool.map(count, [streamer] * 4) == [expected] * 4
"""
    )
    done = subprocess.run(
        [sys.executable, script, large, method], capture_output=True, text=True, timeout=120, env=processes.environment()
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_data_loader_stream(large, tmp_path, context):
    script = tmp_path / "script.py"
    script.write_text(
        """
import sys
import headrace, torch
from torch.utils.data import DataLoader, IterableDataset
class Weights(IterableDataset):
    def __init__(self, path):
        self.streamer = headrace.ModelStreamer(path)
        self.streamer.keys()
    def __iter__(self):
        names = self.streamer.keys()[torch.utils.data.get_worker_info().id :: 2]
        for name, tensor in self.streamer.stream_sync(tensors=names):
            yield name, tensor.shape[0]
if __name__ == "__main__":
    for _ in headrace.ModelStreamer(sys.argv[1]).stream_sync():
        pass
    weights = Weights(sys.argv[1])
    loader = DataLoader(weights, batch_size=None, num_workers=2, multiprocessing_context=sys.argv[2])
    assert sorted(name for name, _ in loader) == sorted(weights.streamer.keys())
"""
    )
    done = subprocess.run(
        [sys.executable, script, large, context], capture_output=True, text=True, timeout=120, env=processes.environment()
    )
    assert done.returncode == 0, done.stderr


ENDS = {
    "a stream that is half-way": """
stream = iter(weights); next(stream)
""",
    "a stream of a module's global": """
import builtins
builtins.stream = iter(weights); next(builtins.stream)
""",
    "a loop that was never closed": """
loop = asyncio.new_event_loop()
stream = aiter(weights)
async def step():
    await anext(stream)
loop.run_until_complete(step())
""",
    "a task that still waits": """
async def main():
    async def step():
        await anext(aiter(weights))
    task = asyncio.ensure_future(step())
    await asyncio.sleep(0)
asyncio.run(main())
""",
    "a daemon thread that streams": """
thread = threading.Thread(target=lambda: [None for _ in range(1000) for _ in iter(weights)], daemon=True)
thread.start()
next(iter(weights))
""",
    "sys.exit in the loop": """
for _ in iter(weights):
    sys.exit(0)
""",
    "tensors that are kept": """
import builtins
builtins.kept = [tensor for tensor in weights]
""",
    "a stream in an exit handler": """
import atexit
atexit.register(lambda: list(iter(weights)))
""",
}


@pytest.mark.parametrize("what", ENDS)
def test_the_interpreter_ends_cleanly_with(what, large):
    code = "import asyncio, sys, threading, headrace\nweights = headrace.stream(sys.argv[1])\n" + ENDS[what]
    for _ in range(2):
        done = processes.run_python(code, large, limit=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_interpreter_ends_while_a_server_holds_a_stream(held):
    code = """
import sys, threading, headrace
thread = threading.Thread(target=lambda: list(headrace.stream(sys.argv[1])), daemon=True)
thread.start()
sys.stdin.readline()
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code, held.url], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=processes.environment()
    )
    try:
        assert held.held.wait(60)
        _, errors = child.communicate("\n", timeout=30)
    finally:
        child.kill()
    assert child.returncode == 0, errors
