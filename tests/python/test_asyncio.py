"""`stream()` inside event loops: of asyncio and of uvloop."""

import asyncio
import gc
import threading

import checkpoints
import headrace
import processes
import pytest
import safetensors
import uvloop
from model_server import ModelServer


def digest(tensor) -> bytes:
    import torch

    return bytes(tensor.reshape(-1).view(torch.uint8).numpy())


def expected(folder) -> dict[str, bytes]:
    return {
        name: bytes(tensor["data"])
        for path in sorted(folder.glob("*.safetensors"))
        for name, tensor in safetensors.deserialize(path.read_bytes())
    }


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    """Runs a coroutine on a loop of each kind, with a limit."""

    def run(work, limit: float = 60):
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(asyncio.wait_for(work, limit))

    return run


async def collect(streamer, **options):
    return {name: digest(tensor) async for name, tensor in streamer.stream(**options)}


def test_every_tensor_arrives_from_files_and_over_http(run, large, nothing_leaks):
    assert run(collect(headrace.ModelStreamer(large))) == expected(large)
    with ModelServer(large) as server:
        assert run(collect(headrace.ModelStreamer(server.url, chunk_size="4MiB"))) == expected(large)


def test_no_thread_of_python_is_started(run, large):
    async def look():
        async for _ in headrace.ModelStreamer(large).stream():
            assert threading.active_count() == threads

    threads = threading.active_count()
    run(look())


def test_other_tasks_run_while_a_stream_waits_and_while_it_need_not(run, large, held):
    async def count(until: asyncio.Future) -> int:
        turns = 0
        while not until.done():
            await asyncio.sleep(0)
            turns += 1
            if turns == 1000:
                held.release()
        return turns

    async def both():
        streaming = asyncio.ensure_future(collect(headrace.ModelStreamer(held.url)))
        return await count(streaming), await streaming

    turns, found = run(both())
    assert turns >= 1000
    assert found == expected(large)


def test_many_streams_at_once_share_a_loop(run, large, nothing_leaks):
    streamer = headrace.ModelStreamer(large, chunk_size="1MiB", memory_limit="8MiB")

    async def all_of_them():
        return await asyncio.gather(*(collect(streamer) for _ in range(8)))

    assert all(found == expected(large) for found in run(all_of_them()))


def test_loops_in_several_threads_stream_at_once(large):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(asyncio.run(collect(headrace.ModelStreamer(large))))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [expected(large)] * 4


def test_cancelling_the_task_that_waits_ends_the_stream(run, held, nothing_leaks):
    async def cancel():
        streamer = headrace.ModelStreamer(held.url)
        waiting = asyncio.ensure_future(collect(streamer))
        while not held.held.is_set():
            await asyncio.sleep(0.001)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run(cancel())


def test_cancelling_twice_is_cancelling_once(run, held, nothing_leaks):
    async def cancel():
        waiting = asyncio.ensure_future(collect(headrace.ModelStreamer(held.url)))
        while not held.held.is_set():
            await asyncio.sleep(0.001)
        waiting.cancel()
        asyncio.get_running_loop().call_soon(waiting.cancel)
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run(cancel())


def test_a_stream_that_was_cancelled_does_not_look_complete(run, held):
    async def cancel():
        stream = headrace.ModelStreamer(held.url).stream()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                async for _ in stream:
                    pass
        with pytest.raises(headrace.CancelledError):
            await anext(stream)

    run(cancel())


def test_opening_can_be_cancelled(run, tmp_path, large, nothing_leaks):
    async def cancel():
        with ModelServer(large) as server:
            server.hold("/model.safetensors.index.json", after=1)
            opening = asyncio.ensure_future(headrace.ModelStreamer(server.url).open())
            while not server.held.is_set():
                await asyncio.sleep(0.001)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening

    run(cancel())


def test_leaving_the_loop_drops_the_stream(run, large, nothing_leaks):
    async def leave():
        async for name, _ in headrace.ModelStreamer(large).stream():
            return name

    assert run(leave()) in expected(large)


def test_an_error_of_the_consumer_passes_and_ends_the_stream(run, large, nothing_leaks):
    async def fail():
        async with headrace.ModelStreamer(large).stream() as tensors:
            async for _ in tensors:
                raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        run(fail())


def test_closing_ends_a_step_of_another_task(run, held, nothing_leaks):
    async def close():
        stream = headrace.ModelStreamer(held.url).stream()

        async def consume():
            async for _ in stream:
                pass

        consuming = asyncio.ensure_future(consume())
        while not held.held.is_set():
            await asyncio.sleep(0.001)
        await stream.aclose()
        await stream.aclose()
        with pytest.raises(headrace.CancelledError):
            await consuming

    run(close())


def test_closing_does_not_wait_for_a_step_that_its_coroutine_has_left(run, held, nothing_leaks):
    async def leave():
        stream = headrace.ModelStreamer(held.url).stream()

        async def consume():
            async for _ in stream:
                pass

        consuming = asyncio.ensure_future(consume())
        while not held.held.is_set():
            await asyncio.sleep(0.001)
        # As where a task is destroyed: its frames are left while the call is under way.
        consuming.get_coro().close()
        await stream.aclose()
        consuming.cancel()
        await asyncio.wait([consuming])

    run(leave())


def test_one_step_at_a_time(run, held):
    async def step_twice():
        stream = headrace.ModelStreamer(held.url).stream()

        async def exhaust():
            return [name async for name, _ in stream]

        first = asyncio.ensure_future(exhaust())
        while not held.held.is_set():
            await asyncio.sleep(0.001)
        with pytest.raises(ValueError, match="another task"):
            await anext(stream)
        held.release()
        return await first

    assert len(run(step_twice())) == 6


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_loop_that_is_closed_under_a_stream_leaves_nothing(loop_factory, held, nothing_leaks):
    loop = loop_factory()
    stream = headrace.ModelStreamer(held.url).stream()

    async def consume():
        async for _ in stream:
            pass

    task = loop.create_task(consume())

    async def until_held():
        while not held.held.is_set():
            await asyncio.sleep(0.001)

    loop.run_until_complete(until_held())
    loop.close()
    task._log_destroy_pending = False
    del task, stream, consume
    gc.collect()


def test_a_stream_of_one_loop_is_refused_by_another(large):
    stream = headrace.ModelStreamer(large).stream()

    async def one():
        return await anext(stream)

    asyncio.run(one())
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(one())


def test_errors_reach_the_consumer(run, tmp_path, nothing_leaks):
    with pytest.raises(FileNotFoundError):
        run(collect(headrace.ModelStreamer(tmp_path / "nothing")))
    with pytest.raises(ValueError, match="No files found"):
        run(collect(headrace.ModelStreamer(tmp_path)))


def test_a_server_that_fails_in_the_middle_is_an_error_and_no_end(run, held):
    async def fail():
        waiting = asyncio.ensure_future(collect(headrace.ModelStreamer(held.url, retries=0)))
        while not held.held.is_set():
            await asyncio.sleep(0.001)
        held.refuse = 403
        held.release(broken=True)
        return await waiting

    with pytest.raises(headrace.Error):
        run(fail())


def test_state_dict_has_all_tensors_in_the_order_of_the_files(run, large):
    found = run(headrace.ModelStreamer(large).state_dict())
    assert list(found) == headrace.ModelStreamer(large).keys()
    assert {name: digest(tensor) for name, tensor in found.items()} == expected(large)


def test_the_neutral_stream_is_for_async_for_too(run, small):
    async def collect_neutral():
        return {tensor.name: bytes(tensor) async for tensor in headrace.stream(small)}

    assert run(collect_neutral()) == expected(small)


def test_the_bridge_is_gone_once_nothing_uses_it(run, large):
    from headrace import _bridge

    async def stream():
        await collect(headrace.ModelStreamer(large))
        return _bridge._bridges.get(asyncio.get_running_loop())

    assert run(stream()) is None


def test_what_a_stream_leaves_is_freed_without_its_loop(run, large, nothing_leaks):
    async def take_one():
        stream = headrace.ModelStreamer(large).stream()
        await anext(stream)
        return stream

    left = run(take_one())
    del left
    processes.warm_up()


def test_names_choose_and_order_what_comes(run, large):
    names = list(expected(large))
    wanted = [names[4], names[1], names[3]]

    async def in_order():
        return [name async for name, _ in headrace.ModelStreamer(large).stream(tensors=wanted, order="requested")]

    assert run(in_order()) == wanted
    assert run(collect(headrace.ModelStreamer(large, include="layers.0.*"))).keys() == {n for n in names if "layers.0." in n}
    assert run(collect(headrace.ModelStreamer(large, exclude=["layers.0.*"]))).keys() == {n for n in names if "layers.1." in n}
    assert run(collect(headrace.ModelStreamer(large), tensors=[])) == {}
    with pytest.raises(headrace.NotFoundError, match="no tensor is called 'nobody'"):
        run(collect(headrace.ModelStreamer(large), tensors=["nobody"]))
