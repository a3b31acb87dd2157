"""`stream_sync()`: for synchronous code, in any thread."""

import asyncio
import gc
import signal
import subprocess
import sys
import threading

import checkpoints
import headrace
import processes
import pytest
import torch
from model_server import ModelServer


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.reshape(-1).view(torch.uint8).numpy())


def expected(folder) -> dict[str, bytes]:
    return {tensor.name: bytes(tensor) for tensor in headrace.stream(folder)}


def collect(streamer, **options) -> dict[str, bytes]:
    return {name: raw(tensor) for name, tensor in streamer.stream_sync(**options)}


def test_it_works_in_a_thread_whose_event_loop_is_running(large):
    async def inside():
        return collect(headrace.ModelStreamer(large))

    assert asyncio.run(inside()) == expected(large)


def test_it_starts_no_thread_of_python(large):
    threads = threading.active_count()
    for _ in headrace.ModelStreamer(large).stream_sync():
        assert threading.active_count() == threads


def test_other_threads_of_python_run_while_it_waits(held, large):
    found = []
    thread = threading.Thread(target=lambda: found.append(collect(headrace.ModelStreamer(held.url))))
    thread.start()
    assert held.held.wait(20)
    held.release()
    thread.join(60)
    assert found == [expected(large)]


def test_many_threads_stream_at_once(large, nothing_leaks):
    streamer = headrace.ModelStreamer(large, memory_limit="16MiB")
    found = []
    threads = [threading.Thread(target=lambda: found.append(collect(streamer))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [expected(large)] * 6


def test_another_thread_can_close_it_while_it_waits(held, nothing_leaks):
    stream = headrace.ModelStreamer(held.url).stream_sync()
    arrived, raised = [], []

    def consume():
        try:
            for name, _ in stream:
                arrived.append(name)
        except headrace.CancelledError as error:
            raised.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    assert held.held.wait(20)
    # Of the file that is held nothing comes; of the other one three tensors.
    processes.wait_until(lambda: len(arrived) == 3 and stream._step.locked(), lambda: f"it does not wait: {arrived}")
    stream.close()
    thread.join(20)
    assert len(raised) == 1
    assert list(stream) == []


def test_closing_while_the_checkpoint_is_opened_ends_the_stream(large):
    with ModelServer(large) as server:
        server.hold("/model.safetensors.index.json", after=1)
        stream = headrace.ModelStreamer(server.url).stream_sync()
        raised = []

        def consume():
            try:
                list(stream)
            except headrace.CancelledError as error:
                raised.append(error)

        thread = threading.Thread(target=consume)
        thread.start()
        assert server.held.wait(20)
        stream.close()
        server.release()
        thread.join(20)
        assert len(raised) == 1


def test_two_threads_cannot_step_at_once(held):
    stream = headrace.ModelStreamer(held.url).stream_sync()
    thread = threading.Thread(target=lambda: list(stream))
    thread.start()
    assert held.held.wait(20)
    processes.wait_until(lambda: stream._step.locked())
    with pytest.raises(ValueError, match="another thread"):
        next(stream)
    held.release()
    thread.join(60)


def test_what_is_dropped_half_way_leaves_nothing(large, nothing_leaks):
    for _ in headrace.ModelStreamer(large).stream_sync():
        break
    stream = headrace.ModelStreamer(large).stream_sync()
    next(stream)
    del stream
    with headrace.ModelStreamer(large).stream_sync() as stream:
        next(stream)
    assert list(stream) == []
    gc.collect()


def test_an_error_of_the_consumer_passes(large, nothing_leaks):
    with pytest.raises(ZeroDivisionError):
        with headrace.ModelStreamer(large).stream_sync() as tensors:
            for _ in tensors:
                raise ZeroDivisionError


def test_an_error_of_the_server_is_raised_and_does_not_look_like_an_end(held, nothing_leaks):
    stream = headrace.ModelStreamer(held.url, retries=0).stream_sync()
    raised = []

    def consume():
        try:
            list(stream)
        except headrace.Error as error:
            raised.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    assert held.held.wait(20)
    held.refuse = 403
    held.release(broken=True)
    thread.join(60)
    assert isinstance(raised[0], (PermissionError, ConnectionError))
    with pytest.raises(headrace.CancelledError):
        next(stream)


@pytest.mark.parametrize("inside_loop", [False, True])
def test_a_keyboard_interrupt_ends_a_step_that_waits(held, inside_loop):
    code = """
import asyncio, sys, headrace
def stream():
    try:
        for _ in headrace.ModelStreamer(sys.argv[1]).stream_sync():
            pass
    except KeyboardInterrupt:
        print("interrupted", flush=True)
async def inside():
    stream()
stream() if sys.argv[2] == "False" else asyncio.new_event_loop().run_until_complete(inside())
"""
    child = subprocess.Popen(
        [sys.executable, "-c", processes.INTERRUPTIBLE + code, held.url, str(inside_loop)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=processes.environment(),
    )
    try:
        assert held.held.wait(60)
        child.send_signal(signal.SIGINT)
        output, errors = child.communicate(timeout=30)
    finally:
        child.kill()
    assert (child.returncode, output) == (0, "interrupted\n"), errors


def test_the_same_stream_may_be_taken_from_several_threads_in_turn(large):
    stream = headrace.ModelStreamer(large).stream_sync()
    names = []
    while True:
        step = []
        thread = threading.Thread(target=lambda: step.append(next(stream, None)))
        thread.start()
        thread.join(20)
        if step == [None]:
            break
        names.append(step[0][0])
    assert sorted(names) == sorted(expected(large))


def test_a_small_memory_limit_is_enough_for_everything(tmp_path):
    folder = checkpoints.write_single(tmp_path, [checkpoints.tensor(f"t{n}", "U8", [300_000]) for n in range(40)])
    with ModelServer(tmp_path) as server:
        streamer = headrace.ModelStreamer(f"{server.url}/model.safetensors", chunk_size="256KiB", memory_limit="512KiB")
        assert collect(streamer) == expected(folder)
        assert streamer.statistics.bytes >= 40 * 300_000
        assert streamer.statistics.requests > 1


def test_requested_order_is_kept(large):
    names = headrace.ModelStreamer(large).keys()[::-1]
    assert list(collect(headrace.ModelStreamer(large), tensors=names, order="requested")) == names


def test_a_device_or_a_dtype_that_is_none_is_what_python_would_say(large):
    streamer = headrace.ModelStreamer(large)
    with pytest.raises(ValueError, match="nowhere"):
        streamer.stream_sync(device="nowhere")
    with pytest.raises(ValueError, match="meta"):
        streamer.stream(device="meta")
    with pytest.raises(TypeError, match="device"):
        streamer.stream(device=1.5)
    with pytest.raises(TypeError, match="torch.dtype"):
        streamer.stream(dtype="float16")
    with pytest.raises(ValueError, match="floating"):
        streamer.stream(dtype=torch.int8)
    with pytest.raises(ValueError, match="order"):
        next(streamer.stream_sync(order="any"))


def test_dtype_casts_floating_tensors_alone(small):
    found = dict(headrace.ModelStreamer(small).stream_sync(dtype=torch.float16))
    assert {name: tensor.dtype for name, tensor in found.items()} == {
        "layers.0.weight": torch.float16,
        "layers.1.weight": torch.float16,
        "count": torch.int64,
    }
