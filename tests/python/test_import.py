"""What importing headrace costs, and what it leaves alone."""

import json

import processes

LOOK = """
import sys, time, os, json
tasks, descriptors = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
import typing
begin = time.perf_counter()
import headrace
seconds = time.perf_counter() - begin
print(json.dumps({
    "seconds": seconds,
    "modules": sorted({name.partition(".")[0] for name in sys.modules}),
    "started": [len(os.listdir("/proc/self/task")) - tasks, len(os.listdir("/proc/self/fd")) - descriptors],
}))
"""


def look() -> dict:
    done = processes.run_python(LOOK)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_it_is_quick():
    # The best of several: a busy machine may hold up any one of them.
    assert min(look()["seconds"] for _ in range(10)) < 0.05


def test_importing_it_imports_neither_torch_nor_numpy_nor_asyncio():
    assert not {"torch", "numpy", "asyncio", "logging", "tqdm"} & set(look()["modules"])


def test_importing_it_starts_no_thread_and_opens_no_descriptor():
    assert look()["started"] == [0, 0]


def test_streaming_without_torch_needs_neither_torch_nor_numpy(small):
    code = """
import sys, headrace
found = {tensor.name: bytes(tensor) for tensor in headrace.stream(sys.argv[1])}
assert sorted(found) == ["count", "layers.0.weight", "layers.1.weight"], found
assert len(found["layers.0.weight"]) == 64 * 16 * 4
assert not {"torch", "numpy"} & set(sys.modules)
"""
    done = processes.run_python(code, small)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_there_and_documented():
    import headrace

    for name in headrace.__all__:
        if name == "load_hf_model":
            continue
        assert getattr(headrace, name).__doc__, name
    assert set(headrace.__all__) <= set(dir(headrace))
