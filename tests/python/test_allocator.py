"""Streams into memory that a function of Python's gives: on CUDA torch's caching allocator, here torch's on the host."""

import gc
import weakref

import headrace
import pytest
import torch
from headrace import _torch
from headrace._source import Source


# Comparing tensors would otherwise start threads of torch's, which stay.
torch.set_num_threads(1)


class OutOfMemoryError(RuntimeError):
    """Called as torch's is."""


class Memory:
    """Blocks of torch's, counted while they are alive."""

    def __init__(self, limit: int = 1 << 40):
        self.limit = limit
        self.blocks = weakref.WeakSet()
        self.sizes = []

    def __call__(self, sizes):
        if sum(self.sizes) + sum(sizes) > self.limit:
            raise OutOfMemoryError("none is left\nand a line that nobody needs")
        self.sizes += sizes
        made = [torch.empty(size + 64, dtype=torch.uint8) for size in sizes]
        for block in made:
            self.blocks.add(block)
        return [((block.data_ptr() + 63) // 64 * 64, block) for block in made]

    def alive(self) -> int:
        gc.collect()
        return len(self.blocks)


def start(folder, memory):
    source = Source(folder, memory_limit="64MiB")
    return source.start(source.open(), device="cpu", order="completion", memory=(memory, None))


def take_all(stream):
    found = {}
    while (tensor := stream.next()) is not None:
        found[tensor.name] = _torch.to_torch(tensor)
    return found


def test_tensors_are_in_that_memory_and_give_it_back(large, nothing_leaks):
    memory = Memory()
    expected = dict(headrace.ModelStreamer(large).stream_sync())
    stream = start(large, memory)
    found = take_all(stream)
    assert found.keys() == expected.keys()
    # As bytes: among them are NaNs.
    assert all(torch.equal(found[name].view(torch.uint8), expected[name].view(torch.uint8)) for name in found)
    addresses = {block.data_ptr() for block in memory.blocks}
    assert all(any(0 <= each.data_ptr() - at < 64 for at in addresses) for each in found.values())
    assert memory.alive() == len(found)
    kept = found.pop(next(iter(found)))
    found.clear()
    assert memory.alive() == 1
    del kept, stream
    assert memory.alive() == 0


def test_a_stream_that_is_dropped_gives_its_memory_back(large, nothing_leaks):
    memory = Memory()
    stream = start(large, memory)
    assert stream.next() is not None
    stream.close()
    del stream
    assert memory.alive() == 0


def test_no_memory_is_an_error_with_the_name_of_the_tensor(large, nothing_leaks):
    memory = Memory(limit=10_000_000)
    stream = start(large, memory)
    with pytest.raises(headrace.OutOfMemoryError, match=r"layers\.\d\.\d\.weight.*none is left") as raised:
        take_all(stream)
    assert isinstance(raised.value, MemoryError)
    assert "nobody" not in str(raised.value)
    del stream, raised
    assert memory.alive() == 0


@pytest.mark.parametrize("given", [[], None, [1], [(1,)], [("a", "b")]])
def test_what_is_no_memory_is_an_error(large, given):
    with pytest.raises(headrace.Error):
        take_all(start(large, lambda sizes: given))


def test_an_error_of_the_function_is_told(large, nothing_leaks):
    def fails(sizes):
        raise ValueError("this one")

    with pytest.raises(headrace.Error, match="ValueError: this one"):
        take_all(start(large, fails))
