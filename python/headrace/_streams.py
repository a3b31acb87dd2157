"""Streams of tensors, for `for` and for `async for`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, TypeVar

from headrace import _core
from headrace._bridge import Bridge, call
from headrace._errors import CancelledError
from headrace._progress import Bar

T = TypeVar("T")

# Tensors that are there already cost no wait; other tasks of the loop must get their turn all the same.
_TURN_SECONDS = 0.005


class _Stream(Generic[T]):
    """What both have in common: the state of a stream, and its progress."""

    def __init__(self, convert: Callable[[_core.Tensor], T], make_bar: Callable[[], Bar | None], label: str) -> None:
        self._convert = convert
        self._make_bar = make_bar
        self._label = label
        self._stream: _core.Stream | None = None
        self._bar: Bar | None = None
        self._state = "new"  # new, open, finished, broken (an error, a cancelled task), closed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._label}: {self._state}>"

    @property
    def progress(self) -> tuple[int, int, int, int]:
        """How far it is: bytes, bytes in all, tensors, tensors in all."""
        return self._stream.progress() if self._stream is not None else (0, 0, 0, 0)

    def _begin(self) -> bool:
        """Whether another tensor may be asked for."""
        if self._state == "finished":
            return False
        if self._state == "broken":
            raise CancelledError("the stream ended before its end, with the error or cancellation that it raised before")
        if self._state == "closed":
            return False
        return True

    def _opened(self, stream: _core.Stream) -> _core.Stream:
        if self._state == "closed":  # while the checkpoint was being opened
            raise CancelledError("the stream has been closed")
        self._stream = stream
        self._state = "open"
        self._bar = self._make_bar()
        return stream

    def _show(self) -> None:
        if self._bar is not None and self._stream is not None:
            self._bar.show(self._stream.progress())

    def _ended(self, state: str) -> None:
        if self._state in ("new", "open"):
            self._state = state
        if self._bar is not None:
            self._show()
            self._bar.close()
            self._bar = None


class TensorStream(_Stream[T]):
    """Tensors one by one, for synchronous code, in any thread, also one whose event loop is running.

    Each step blocks the caller, and the caller alone, until the next tensor is there; other threads of Python go on.
    `close()`, or leaving a `with` block, ends it and waits until nothing is left running; a stream that is dropped ends by
    itself. Threads: one at a time; `close()` from any, and then a step under way raises `CancelledError`.

        with streamer.stream_sync() as tensors:
            for name, tensor in tensors:
                ...
    """

    def __init__(
        self,
        start: Callable[[], _core.Stream],
        convert: Callable[[_core.Tensor], T],
        make_bar: Callable[[], Bar | None],
        label: str,
    ) -> None:
        super().__init__(convert, make_bar, label)
        self._start = start
        self._step = threading.Lock()

    def __iter__(self) -> TensorStream[T]:
        return self

    def __next__(self) -> T:
        if not self._begin():
            raise StopIteration
        if not self._step.acquire(blocking=False):
            raise ValueError("another thread is waiting for the next tensor of this stream already")
        try:
            stream = self._stream or self._opened(self._start())
            tensor = stream.next()
        except BaseException:
            self._ended("broken")
            raise
        finally:
            self._step.release()
        if tensor is None:
            self._ended("finished")
            raise StopIteration
        self._show()
        return self._convert(tensor)

    def close(self) -> None:
        """Ends the stream and waits until its memory is given back. May be called again."""
        self._ended("closed")
        if self._stream is not None:
            self._stream.close()

    def __enter__(self) -> TensorStream[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncTensorStream(_Stream[T]):
    """Tensors one by one, for asyncio (and uvloop), without threads.

    Cancelling the task that waits for the next one ends the stream, and is seen once nothing is left running. `aclose()`,
    or leaving an `async with` block, does the same; a stream that is dropped, or whose loop is closed, ends by itself.
    Belongs to the loop that asked for the first tensor.

        async for name, tensor in streamer.stream():
            ...
    """

    _bridge: Bridge | None = None

    def __init__(
        self,
        start: Callable[[], Awaitable[_core.Stream]],
        convert: Callable[[_core.Tensor], T],
        make_bar: Callable[[], Bar | None],
        label: str,
    ) -> None:
        super().__init__(convert, make_bar, label)
        self._start = start
        self._busy = False
        self._idle: asyncio.Future[None] | None = None
        self._turn_began = 0.0

    def __aiter__(self) -> AsyncTensorStream[T]:
        return self

    async def __anext__(self) -> T:
        if not self._begin():
            raise StopAsyncIteration
        if self._busy:
            raise ValueError("another task is waiting for the next tensor of this stream already")
        self._busy = True
        try:
            tensor = await self._next()
        except BaseException:
            self._ended("broken")
            self._release()
            raise
        finally:
            self._busy = False
            if self._idle is not None and not self._idle.done():
                self._idle.set_result(None)
        if tensor is None:
            closed = self._state == "closed"
            self._ended("finished")
            self._release()
            if closed:
                raise CancelledError("the stream has been closed")
            raise StopAsyncIteration
        self._show()
        return self._convert(tensor)

    async def _next(self) -> _core.Tensor | None:
        if self._bridge is None:
            self._bridge = Bridge.acquire()
            self._turn_began = time.monotonic()
        elif not self._bridge.is_running():
            raise RuntimeError("the stream belongs to another event loop")
        stream = self._stream or self._opened(await self._start())
        if time.monotonic() - self._turn_began > _TURN_SECONDS:
            await asyncio.sleep(0)
            self._turn_began = time.monotonic()
        pending = stream.next(self._bridge.executor)
        if pending.finished:
            return pending.take()  # type: ignore[no-any-return]
        tensor: _core.Tensor | None = await self._bridge.finish(pending)
        self._turn_began = time.monotonic()
        return tensor

    async def aclose(self) -> None:
        """Ends the stream, a step of another task included, and waits until its memory is given back."""
        self._ended("closed")
        while self._busy:
            if self._stream is not None:
                self._stream.stop()
            if self._idle is None or self._idle.done():
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)
        stream = self._stream
        if stream is not None:
            await call(stream.close)
        self._release()

    async def __aenter__(self) -> AsyncTensorStream[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _release(self) -> None:
        bridge, self._bridge = self._bridge, None
        if bridge is not None:
            bridge.release()

    def __del__(self) -> None:
        self._stream = None
        self._release()
