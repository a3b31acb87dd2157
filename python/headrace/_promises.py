"""Tensors that are promised: known by name, dtype and shape at once, there when somebody needs them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch

from headrace._errors import CancelledError, InternalError


class Tensors(Protocol):
    """A stream that is under way."""

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]: ...

    def close(self) -> None:
        """Ends it. Threads: any; a step under way in another thread raises."""


Start = Callable[[list[str]], Tensors]
"""Starts a stream of these tensors, delivered in this order."""


class Promise:
    """One tensor of a checkpoint, as transformers takes the values of a `state_dict`.

    `promise[...]` blocks until the tensor is there, and hands it over: it is not kept here. Threads: any.
    """

    __slots__ = ("_feed", "dtype", "name", "shape")

    def __init__(self, feed: Feed, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self._feed = feed
        self.name = name
        self.dtype = dtype
        self.shape = torch.Size(shape)

    def __repr__(self) -> str:
        return f"<promise of {self.name!r}: {self.dtype}, {tuple(self.shape)}>"

    def __getitem__(self, index: Any) -> torch.Tensor:
        tensor = self._feed.take(self.name)
        return tensor if index is Ellipsis else tensor[index]

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def to(self, *arguments: Any, **options: Any) -> torch.Tensor:
        return self[...].to(*arguments, **options)


# As many as takers there are: what was skipped only because they do not take turns in order.
_KEPT = 4


class Feed:
    """One stream of tensors for several threads, each of which takes what it wants, when it wants it.

    Whoever wants a tensor that is not there yet takes from the stream until it is, and lays aside what comes before
    it for the others; meanwhile they wait for him. So no thread is needed, no order of takers can block another, and
    what is laid aside is what was skipped: a few tensors where takers keep about to the order of `names`. Beyond
    `limit` bytes, and `_KEPT` tensors, the oldest of them is dropped. Nothing is fetched before the first taker. A
    tensor that was dropped or given away, or that the stream was not to bring, gets a stream of its own.

    An error of the stream is raised in every taker, now and later.
    """

    def __init__(self, names: Iterable[str], start: Start, limit: int) -> None:
        self._coming = dict.fromkeys(names)
        self._start = start
        self._limit = limit
        self._changed = threading.Condition()
        self._aside: dict[str, torch.Tensor] = {}
        self._aside_bytes = 0
        self._open: set[Tensors] = set()
        self._stream: Iterator[tuple[str, torch.Tensor]] | None = None
        self._busy = False  # somebody takes from the stream
        self._error: BaseException | None = None

    def take(self, name: str) -> torch.Tensor:
        """The tensor, once it is there. Blocks. CancelledError once the feed is closed."""
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                if name in self._aside:
                    return self._take_aside(name)
                if name not in self._coming:
                    break
                if not self._busy:
                    self._busy = True
                    break
                self._changed.wait()
            again = name not in self._coming
        if again:
            return self._take_alone(name)
        try:
            return self._take_until(name)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    @property
    def aside(self) -> list[str]:
        """The tensors that were skipped and wait for their takers."""
        with self._changed:
            return list(self._aside)

    @property
    def error(self) -> BaseException | None:
        """What takers get from now on."""
        with self._changed:
            return self._error

    def close(self) -> None:
        """Ends the stream; takers, waiting ones included, raise CancelledError. Threads: any. May be called again."""
        self._fail(CancelledError("the loading was given up"))
        with self._changed:
            streams = list(self._open)
        for stream in streams:
            stream.close()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._error is None:
                self._error = error
            self._aside.clear()
            self._aside_bytes = 0
            self._changed.notify_all()

    def _take_until(self, name: str) -> torch.Tensor:
        if self._stream is None:
            self._stream = iter(self._begin(list(self._coming)))
        for arrived, tensor in self._stream:
            with self._changed:
                if self._error is not None:
                    raise self._error
                self._coming.pop(arrived, None)
                if arrived == name:
                    return tensor
                self._lay_aside(arrived, tensor)
        raise self._ended_without(name)

    def _lay_aside(self, name: str, tensor: torch.Tensor) -> None:
        self._aside[name] = tensor
        self._aside_bytes += tensor.nbytes
        while self._aside_bytes > self._limit and len(self._aside) > _KEPT:
            self._take_aside(next(iter(self._aside)))
        self._changed.notify_all()

    def _take_aside(self, name: str) -> torch.Tensor:
        tensor = self._aside.pop(name)
        self._aside_bytes -= tensor.nbytes
        return tensor

    def _take_alone(self, name: str) -> torch.Tensor:
        stream = self._begin([name])
        try:
            for arrived, tensor in stream:
                if arrived == name:
                    return tensor
        finally:
            self._end(stream)
        raise self._ended_without(name)

    def _ended_without(self, name: str) -> BaseException:
        """A stream that is closed ends as well."""
        if self.error is not None:
            return self.error
        return InternalError(f"the stream ended without the tensor {name!r}, which its header names")

    def _begin(self, names: list[str]) -> Tensors:
        stream = self._start(names)
        with self._changed:
            self._open.add(stream)
            error = self._error
        if error is not None:
            self._end(stream)
            raise error
        return stream

    def _end(self, stream: Tensors) -> None:
        stream.close()
        with self._changed:
            self._open.discard(stream)


def natural_order(name: str) -> list[tuple[Any, ...]]:
    """The key of the order in which transformers loads tensors: parts between dots, numbers by their value."""
    parts: list[tuple[Any, ...]] = []
    for part in name.split("."):
        text = part.rstrip("0123456789")
        if part.isdecimal():
            parts.append((0, int(part)))
        elif text != part:
            parts.append((1, text, int(part[len(text) :])))
        else:
            parts.append((1, part))
    return parts


def first_floating_dtype(dtypes: Mapping[str, torch.dtype]) -> torch.dtype | None:
    """What `dtype="auto"` means where the config does not say, from the dtypes of a file's tensors: that of the first one,
    by name, that is floating and that torch can compute with; without one, that of the first."""
    ordered = [dtypes[name] for name in sorted(dtypes)]
    for dtype in ordered:
        if dtype.is_floating_point and not str(dtype).startswith(("torch.float8_", "torch.float4_")):
            return dtype
    return ordered[0] if ordered else None
