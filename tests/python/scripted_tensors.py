"""Streams of tensors that do as a test says."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import torch

import headrace


class ScriptedStream:
    """Gives tensors in the given order. Before the tensor `held` it waits until `release()`, or raises `error` instead of it."""

    def __init__(
        self,
        tensors: Iterable[tuple[str, torch.Tensor]],
        *,
        held: str | None = None,
        error: BaseException | None = None,
    ) -> None:
        self.given: list[str] = []
        self.waiting = threading.Event()
        self.closed = threading.Event()
        self._tensors = list(tensors)
        self._held = held
        self._error = error
        self._go = threading.Event()

    def release(self) -> None:
        self._go.set()

    def close(self) -> None:
        self.closed.set()
        self._go.set()

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._tensors:
            if name == self._held:
                self.waiting.set()
                assert self._go.wait(30), "nobody released the stream"
                if self.closed.is_set():
                    raise headrace.CancelledError("closed")
                if self._error is not None:
                    raise self._error
            self.given.append(name)
            yield name, tensor
