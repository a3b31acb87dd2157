"""Between the engine and asyncio: no threads, one descriptor an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Any

from headrace import _core


class Bridge:
    """Runs completions of the engine on one event loop, as long as it has users.

    Threads: the loop's, `release` excepted.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.executor = _core.Executor()
        self._loop = weakref.ref(loop)
        self._users = 0
        self._process = os.getpid()
        loop.add_reader(self.executor.fileno(), self.executor.drain)

    @classmethod
    def acquire(cls) -> Bridge:
        """That of the running loop. To be released."""
        loop = asyncio.get_running_loop()
        bridge = _bridges.get(loop)
        if bridge is None or bridge._process != os.getpid():
            bridge = _bridges[loop] = cls(loop)
        bridge._users += 1
        return bridge

    def is_running(self) -> bool:
        """Whether this is the thread of its loop, inside of it."""
        loop = self._loop()
        return loop is not None and asyncio._get_running_loop() is loop

    def release(self) -> None:
        """Threads: any; also where the loop is closed."""
        if self._process != os.getpid():
            return  # the parent's: to touch its selector from a forked child would break it there
        loop = self._loop()
        if loop is None or loop.is_closed():
            self.executor.abandon()
        elif self.is_running():
            self._release(loop)
        else:
            try:
                loop.call_soon_threadsafe(self._release, loop)
            except RuntimeError:  # closed meanwhile
                self.executor.abandon()

    def _release(self, loop: asyncio.AbstractEventLoop) -> None:
        self._users -= 1
        if self._users > 0:
            return
        if _bridges.get(loop) is self:
            del _bridges[loop]
        loop.remove_reader(self.executor.fileno())
        # What its users have left under way ends without the loop.
        self.executor.abandon()

    async def finish(self, pending: _core.Pending) -> Any:
        """What the call gives. Where the awaiting task is cancelled, the call is stopped and its end awaited first."""
        if not pending.finished:
            try:
                await self._until_finished(pending)
            except asyncio.CancelledError:
                pending.request_stop()
                while not pending.finished:
                    with contextlib.suppress(asyncio.CancelledError):
                        await self._until_finished(pending)
                raise
        return pending.take()

    async def _until_finished(self, pending: _core.Pending) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Weakly: the engine keeps what it is to call, and a loop that is closed under a stream would never be let go.
        waiting = weakref.ref(future)

        def finished() -> None:
            future = waiting()
            if future is not None and not future.done() and not future.get_loop().is_closed():
                future.set_result(None)

        pending.notify(finished)
        await future


_bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Bridge] = weakref.WeakKeyDictionary()


async def call(begin: Callable[[_core.Executor], Any]) -> Any:
    """Runs one call of the engine on the running loop."""
    bridge = Bridge.acquire()
    try:
        return await bridge.finish(begin(bridge.executor))
    finally:
        bridge.release()
