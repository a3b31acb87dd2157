"""Promises of tensors: whoever takes them, in whichever order."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

import headrace  # noqa: E402
from headrace._promises import Feed, Promise, first_floating_dtype, natural_order  # noqa: E402
from scripted_tensors import ScriptedStream  # noqa: E402

NAMES = [f"layer.{number}" for number in range(40)]
MUCH = 1 << 30


def tensor_of(name: str) -> torch.Tensor:
    return torch.full((8,), float(NAMES.index(name)))


class Streams:
    """Starts streams, and remembers them."""

    def __init__(self, **script: object) -> None:
        self.started: list[ScriptedStream] = []
        self.asked: list[list[str]] = []
        self.begun = threading.Event()
        self._script = script

    def __call__(self, names: list[str]) -> ScriptedStream:
        self.asked.append(names)
        stream = ScriptedStream([(name, tensor_of(name)) for name in names], **self._script)  # type: ignore[arg-type]
        self.started.append(stream)
        self.begun.set()
        return stream


def in_thread(act: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Runs it elsewhere; the list gets what it returned or raised."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(act())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def joined(thread: threading.Thread) -> None:
    thread.join(30)
    assert not thread.is_alive(), "it still waits"


def test_nothing_is_fetched_before_somebody_takes():
    streams = Streams()
    feed = Feed(NAMES, streams, MUCH)
    assert streams.asked == []
    assert torch.equal(feed.take(NAMES[0]), tensor_of(NAMES[0]))
    assert streams.asked == [NAMES]
    assert streams.started[0].given == NAMES[:1]


@pytest.mark.parametrize("seed", range(5))
def test_four_takers_in_any_order_get_every_tensor_once(seed):
    streams = Streams()
    feed = Feed(NAMES, streams, MUCH)
    order = random.Random(seed).sample(NAMES, len(NAMES))
    with ThreadPoolExecutor(4) as pool:
        found = dict(zip(order, pool.map(feed.take, order, timeout=30)))
    assert all(torch.equal(found[name], tensor_of(name)) for name in NAMES)
    assert streams.asked == [NAMES]
    assert feed.aside == []


def test_takers_in_order_leave_nothing_aside():
    feed = Feed(NAMES, Streams(), MUCH)
    for name in NAMES:
        feed.take(name)
        assert feed.aside == []


def test_a_tensor_out_of_order_does_not_wait_for_those_before_it():
    streams = Streams()
    feed = Feed(NAMES, streams, MUCH)
    feed.take(NAMES[-1])
    assert feed.aside == NAMES[:-1]
    for name in NAMES[:-1]:
        assert torch.equal(feed.take(name), tensor_of(name))
    assert streams.asked == [NAMES]


def test_what_is_laid_aside_is_bounded_and_what_was_dropped_is_fetched_again():
    streams = Streams()
    feed = Feed(NAMES, streams, limit=10 * 32)
    feed.take(NAMES[-1])
    assert feed.aside == NAMES[-11:-1]
    assert torch.equal(feed.take(NAMES[0]), tensor_of(NAMES[0]))
    assert streams.asked == [NAMES, [NAMES[0]]]
    assert streams.started[1].closed.is_set()


def test_a_tensor_is_fetched_again_where_it_is_taken_again_or_was_not_to_come():
    streams = Streams()
    feed = Feed(NAMES[:2], streams, MUCH)
    for name in (NAMES[0], NAMES[0], NAMES[5]):
        assert torch.equal(feed.take(name), tensor_of(name))
    assert streams.asked == [NAMES[:2], [NAMES[0]], [NAMES[5]]]


def test_a_taker_whose_tensor_has_come_goes_on_while_another_waits():
    streams = Streams(held=NAMES[2])
    feed = Feed(NAMES, streams, MUCH)
    last, outcome = in_thread(lambda: feed.take(NAMES[3]))
    assert streams.begun.wait(30) and streams.started[0].waiting.wait(30)
    assert torch.equal(feed.take(NAMES[1]), tensor_of(NAMES[1]))
    assert last.is_alive()
    streams.started[0].release()
    joined(last)
    assert torch.equal(outcome[0], tensor_of(NAMES[3]))


def test_an_error_of_the_stream_reaches_every_taker_waiting_or_late():
    error = headrace.TruncatedError("cut")
    streams = Streams(held=NAMES[1], error=error)
    feed = Feed(NAMES, streams, MUCH)
    takers = [in_thread(lambda name=name: feed.take(name)) for name in NAMES[2:5]]
    assert streams.begun.wait(30) and streams.started[0].waiting.wait(30)
    streams.started[0].release()
    for thread, outcome in takers:
        joined(thread)
        assert outcome == [error]
    with pytest.raises(headrace.TruncatedError):
        feed.take(NAMES[0])
    assert feed.aside == []


def test_closing_ends_the_stream_and_every_taker():
    streams = Streams(held=NAMES[1])
    feed = Feed(NAMES, streams, MUCH)
    takers = [in_thread(lambda name=name: feed.take(name)) for name in NAMES[2:5]]
    assert streams.begun.wait(30) and streams.started[0].waiting.wait(30)
    feed.close()
    feed.close()
    for thread, outcome in takers:
        joined(thread)
        assert isinstance(outcome[0], headrace.CancelledError)
    assert streams.started[0].closed.is_set()
    with pytest.raises(headrace.CancelledError):
        feed.take(NAMES[0])


def test_a_feed_that_was_closed_starts_nothing():
    streams = Streams()
    feed = Feed(NAMES, streams, MUCH)
    feed.close()
    with pytest.raises(headrace.CancelledError):
        feed.take(NAMES[0])
    assert streams.asked == []


def test_a_stream_that_ends_early_is_an_error_that_names_the_tensor():
    feed = Feed(NAMES, lambda names: ScriptedStream([(NAMES[0], tensor_of(NAMES[0]))]), MUCH)
    with pytest.raises(headrace.InternalError, match=r"layer\.1"):
        feed.take(NAMES[1])


def test_a_promise_is_known_before_it_is_kept():
    streams = Streams()
    promise = Promise(Feed(NAMES, streams, MUCH), NAMES[3], torch.float32, (8,))
    assert promise.dtype == torch.float32 and promise.shape == (8,) and promise.is_floating_point()
    assert streams.asked == []
    assert torch.equal(promise[...], tensor_of(NAMES[3]))
    assert torch.equal(promise[2:4], tensor_of(NAMES[3])[2:4])
    assert promise.to(torch.float16).dtype == torch.float16


def test_natural_order_is_that_of_transformers():
    loading = pytest.importorskip("transformers.core_model_loading")
    names = ["a.10.b", "a.9.b", "a.b", "shard_11.x", "shard_2.x", "10", "9", "a.b10", "a.b9"]
    assert sorted(names, key=natural_order) == sorted(names, key=loading.dot_natural_key)
    natural_order("a.²")  # no number to Python's int


def test_the_dtype_of_files_is_that_of_the_first_floating_tensor_that_torch_computes_with():
    assert first_floating_dtype({"z": torch.float32, "b": torch.bfloat16, "a": torch.int64}) == torch.bfloat16
    assert first_floating_dtype({"a": torch.float8_e4m3fn, "b": torch.float16}) == torch.float16
    assert first_floating_dtype({"b": torch.int8, "a": torch.int64}) == torch.int64
    assert first_floating_dtype({}) is None
