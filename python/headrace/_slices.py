"""A block of one tensor."""

from __future__ import annotations

from typing import Any

import torch

from headrace import _core
from headrace._info import TensorInfo
from headrace._source import Source
from headrace._torch import Placement, dtype_of, shape_of, take_slice, to_torch


class Block:
    """What to fetch for `tensor[index]`, and how to make it of what arrives."""

    def __init__(self, source: Source, info: TensorInfo, index: Any, placed: Placement) -> None:
        self._source = source
        self._info = info
        self._placed = placed
        self._dtype = dtype_of(info.name, info.dtype)
        self._shape = shape_of(info.name, info.dtype, info.shape)
        self._index = index
        self._extents, self._local, self.empty = take_slice(index, self._shape)

    def nothing(self) -> torch.Tensor:
        """What an empty index gives."""
        shape = torch.empty(self._shape, device="meta")[self._index].shape
        return self._placed.place(torch.empty(shape, dtype=self._dtype, device=self._placed.device))

    def start(self) -> _core.Stream:
        extents = list(self._extents)
        if self._info.dtype == "F4" and len(extents) == len(self._shape):
            begin, end = extents[-1]
            extents[-1] = (2 * begin, 2 * end)
        return self._source.start(
            self._source.open(), device=self._placed.engine, order="completion", slices=[(self._info.name, extents)]
        )

    def take(self, tensor: _core.Tensor | None) -> torch.Tensor:
        assert tensor is not None  # a stream of one slice gives one tensor, or an error
        return self._placed.place(to_torch(tensor)[self._local])
