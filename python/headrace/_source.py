"""A checkpoint somewhere: opened when it is needed, once."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

from headrace import _core, _options
from headrace._errors import InvalidRequestError, NotFoundError
from headrace._info import FileInfo, Statistics, TensorInfo

Order = Literal["completion", "requested"]
Extents = list[tuple[int, int]]

_MIB = 1 << 20
_DEFAULT_CHUNK = 16 * _MIB
_DEFAULT_LIMIT = 1024 * _MIB
_DEFAULT_CONCURRENCY = 32
_DEFAULT_RETRIES = 5

# Before the interpreter goes: threads of the engine must not run while the process is taken down.
atexit.register(_core.shut_down)


class Source:
    """The location, the options, and the opened checkpoint once there is one. Copies into other processes open it anew."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        chunk_size: int | str | None = None,
        max_concurrency: int | None = None,
        memory_limit: int | str | None = None,
        threads: int | None = None,
        include: str | Iterable[str] | None = None,
        exclude: str | Iterable[str] | None = None,
        tensors: Iterable[str] | None = None,
        revision: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        connect_timeout: float | None = None,
        stall_timeout: float | None = None,
        deadline: float | None = None,
        retries: int | None = None,
    ) -> None:
        self.path = _options.location(path, revision)
        self.chunk_size = _options.size(chunk_size, "chunk_size", _DEFAULT_CHUNK)
        self.max_concurrency = _options.count(max_concurrency, "max_concurrency", _DEFAULT_CONCURRENCY)
        self.memory_limit = _options.size(memory_limit, "memory_limit", max(_DEFAULT_LIMIT, self.chunk_size))
        self.threads = _options.count(threads, "threads", 0)
        self.include = _names(include, "include")
        self.exclude = _names(exclude, "exclude")
        self.tensors = _names(tensors, "tensors")
        self.storage_options = dict(storage_options or {})
        self.limits = {"connect_timeout": connect_timeout, "stall_timeout": stall_timeout, "deadline": deadline}
        self.retries = _options.count(retries, "retries", _DEFAULT_RETRIES)
        self.model: _core.Model | None = None
        self._infos: dict[str, TensorInfo] | None = None
        self._opening()  # what is wrong with the options is said here

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "model": None, "_infos": None}

    def _opening(self) -> _core.OpenOptions:
        options = _core.OpenOptions()
        options.storage = _options.storage(self.storage_options)
        options.chunk_size = self.chunk_size
        options.max_concurrency = self.max_concurrency
        options.retries = self.retries
        for name, seconds in self.limits.items():
            if seconds is None:
                continue
            if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
                raise TypeError(f"{name} must be a number of seconds, not {type(seconds).__name__}")
            setattr(options, name, float(seconds))
        return options

    def open(self) -> _core.Model:
        """Blocks until the index and the headers have been read and checked; does nothing once they have."""
        if self.model is None:
            self._accept(self._begin(None))
        assert self.model is not None
        return self.model

    async def open_async(self) -> _core.Model:
        """The same on the running event loop."""
        if self.model is None:
            from headrace._bridge import call

            self._accept(await call(self._begin))
        assert self.model is not None
        return self.model

    def _begin(self, executor: _core.Executor | None) -> Any:
        from headrace import _logs

        _logs.collect()
        return _core.open(os.fsencode(self.path), self._opening(), self.threads, executor)

    def _accept(self, model: _core.Model) -> None:
        if self.model is None:  # two may have opened it at once; either is right
            self._infos = {found[0]: TensorInfo(*found) for found in model.tensors()}
            self.model = model

    def infos(self) -> dict[str, TensorInfo]:
        self.open()
        assert self._infos is not None
        return self._infos

    def files(self) -> list[FileInfo]:
        return [FileInfo(*file) for file in self.open().files()]

    def statistics(self) -> Statistics:
        return Statistics(*self.model.statistics()) if self.model is not None else Statistics(0, 0, 0)

    def chosen(self, model: _core.Model, tensors: Iterable[str] | None = None) -> list[str] | None:
        """The tensors to stream, in order; None for all of them. NotFoundError where nothing is left."""
        wanted = self.tensors if tensors is None else _names(tensors, "tensors")
        if wanted is None and self.include is None and self.exclude is None:
            return None
        names = [info[0] for info in model.tensors()]
        if wanted is not None:
            known = set(names)
            chosen: dict[str, None] = {}
            for name in wanted:
                found = [name] if name in known else [each for each in names if _core.matches(name, each)]
                if not found:
                    raise NotFoundError(f"no tensor is called {name!r}, and none matches it as a glob, in {model.uri}")
                chosen.update(dict.fromkeys(found))
            names = list(chosen)
            if not names:
                return names
        left = [
            name
            for name in names
            if (self.include is None or any(_core.matches(glob, name) for glob in self.include))
            and not any(_core.matches(glob, name) for glob in self.exclude or ())
        ]
        if not left:
            raise NotFoundError(f"no tensor is left by include and exclude, in {model.uri}")
        return left

    def start(
        self,
        model: _core.Model,
        *,
        device: str,
        order: Order,
        tensors: Iterable[str] | None = None,
        slices: Sequence[tuple[str, Extents]] | None = None,
    ) -> _core.Stream:
        """A stream of the chosen tensors, or of the slices. Nothing is asked for yet."""
        if order not in ("completion", "requested"):
            raise InvalidRequestError(f"order must be 'completion' or 'requested', not {order!r}")
        if slices is None:
            chosen = self.chosen(model, tensors)
            if chosen == []:
                return cast("_core.Stream", _NoTensors())
            slices = [(name, []) for name in chosen or ()]
        return model.stream(device, self.memory_limit, order == "requested", list(slices))


class _NoTensors:
    """The stream of no tensors: to the engine an empty choice is all of them."""

    def next(self, executor: _core.Executor | None = None) -> Any:
        return None if executor is None else _Done()

    def close(self, executor: _core.Executor | None = None) -> Any:
        return None if executor is None else _Done()

    def stop(self) -> None: ...

    def progress(self) -> tuple[int, int, int, int]:
        return (0, 0, 0, 0)


class _Done:
    finished = True

    def take(self) -> None: ...


def _names(given: str | Iterable[str] | None, what: str) -> list[str] | None:
    if given is None:
        return None
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{what} must hold texts, not {type(name).__name__}")
    return names
