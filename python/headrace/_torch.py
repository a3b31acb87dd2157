"""From the engine's tensors to torch's, without a copy."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import dlpack

from headrace import _core
from headrace._errors import InvalidRequestError, UnsupportedError
from headrace._source import Memory

# What safetensors calls them, and what torch does; versions of torch lack some of them.
_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16",
    "I32": "int32", "U32": "uint32", "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64",
    "U64": "uint64", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F4": "float4_e2m1fn_x2",
}  # fmt: skip

_DTYPES: dict[str, torch.dtype] = {
    name: found for name, spelled in _NAMES.items() if isinstance(found := getattr(torch, spelled, None), torch.dtype)
}


def dtype_of(name: str, dtype: str) -> torch.dtype:
    """torch's dtype of the tensor `name`. UnsupportedError where it has none."""
    found = _DTYPES.get(dtype)
    if found is None:
        raise UnsupportedError(
            f"tensor {name!r}: this version of torch has no dtype for {dtype}; headrace.stream() gives its bytes"
        )
    return found


def shape_of(name: str, dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that torch gives it: F4 has two elements to a byte, along the last dimension."""
    if dtype != "F4":
        return shape
    if not shape or shape[-1] % 2:
        raise UnsupportedError(f"tensor {name!r}: torch packs F4 in pairs along the last dimension, which {shape} lacks")
    return (*shape[:-1], shape[-1] // 2)


def to_torch(tensor: _core.Tensor) -> torch.Tensor:
    """The same memory as a torch tensor. The engine's tensor may be dropped."""
    name, dtype = tensor.name, tensor.dtype
    wanted = dtype_of(name, dtype)
    shape = shape_of(name, dtype, tensor.shape)
    if tensor.nbytes == 0:
        kind, number = tensor.__dlpack_device__()
        return torch.empty(shape, dtype=wanted, device="cpu" if kind == 1 else f"cuda:{number}")
    # As bytes: DLPack, and torch's reading of it, lack some dtypes; a view of bytes lacks none.
    flat: torch.Tensor = dlpack.from_dlpack(tensor.raw.__dlpack__())
    return flat.view(wanted).reshape(shape)


class Placement:
    """Where tensors go, and as which dtype: what `device` and `dtype` of the streamer's methods mean.

    `engine` is the device that the engine delivers to; what it does not know (mps, xpu, ...) torch moves to.
    """

    def __init__(self, device: Any, dtype: Any) -> None:
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype must be a torch.dtype, such as torch.bfloat16, not {dtype!r}")
        if dtype is not None and not dtype.is_floating_point:
            raise InvalidRequestError(f"dtype casts floating-point tensors alone, and {dtype} is none of theirs")
        self.dtype: torch.dtype | None = dtype
        self.device = parse_device(device)
        self.engine = "cpu"
        self._move_to: torch.device | None = None
        if self.device.type == "cuda":
            number = self.device.index
            if number is None:
                number = torch.cuda.current_device() if torch.cuda.is_available() else 0
            self.engine = f"cuda:{number}"
        elif self.device.type != "cpu":
            self._move_to = self.device

    def memory(self) -> Memory | None:
        """On CUDA: memory of torch's caching allocator, in the order of the stream that is current here and now."""
        if self.device.type != "cuda" or not torch.cuda.is_available():
            return None
        stream = torch.cuda.current_stream(self.engine)
        device = torch.device(self.engine)

        def allocate(sizes: list[int]) -> list[tuple[int, object]]:
            with torch.cuda.stream(stream):
                blocks = [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]
            return [(block.data_ptr(), block) for block in blocks]

        return allocate, stream.cuda_stream

    def __call__(self, tensor: _core.Tensor) -> tuple[str, torch.Tensor]:
        return tensor.name, self.place(to_torch(tensor))

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Moves it first and casts it there."""
        if self._move_to is not None:
            tensor = tensor.to(self._move_to)
        if self.dtype is None or tensor.dtype == self.dtype or tensor.dtype is _DTYPES.get("F4"):
            return tensor  # packed pairs have no values that torch could cast
        if tensor.is_floating_point():
            tensor = tensor.to(self.dtype)
        return tensor


def parse_device(device: Any) -> torch.device:
    """The device, host memory for None. InvalidRequestError for what is none, and for `meta`, which holds nothing."""
    if device is None:
        return torch.device("cpu")
    if not isinstance(device, (str, int, torch.device)) or isinstance(device, bool):
        raise TypeError(f"device must be a text such as 'cuda:0' or a torch.device, not {type(device).__name__}")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise InvalidRequestError(f"{device!r} is not a device of torch: {str(error).splitlines()[0]}") from None
    if found.type == "meta":
        raise InvalidRequestError("tensors cannot be streamed to the device meta, which holds no data")
    return found


def take_slice(index: Any, shape: tuple[int, ...]) -> tuple[list[tuple[int, int]], tuple[Any, ...], bool]:
    """What to fetch for `tensor[index]`: the extents of a block, what to take of the block, and whether it is empty."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if sum(part is Ellipsis for part in parts) > 1:
        raise IndexError("an index can hold one ... only")
    if Ellipsis in [part for part in parts if part is Ellipsis]:
        at = next(number for number, part in enumerate(parts) if part is Ellipsis)
        parts[at : at + 1] = [slice(None)] * (len(shape) - len(parts) + 1)
    if len(parts) > len(shape):
        raise IndexError(f"too many indices: the tensor has {len(shape)} dimensions")
    extents: list[tuple[int, int]] = []
    local: list[Any] = []
    for dimension, (part, extent) in enumerate(zip(parts, shape)):
        if isinstance(part, slice):
            begin, end, step = part.indices(extent)
            if step <= 0:
                raise ValueError("an index needs positive steps")
            extents.append((begin, max(begin, end)))
            local.append(slice(None, None, step))
        else:
            try:
                number = part.__index__()
            except AttributeError:
                raise TypeError(f"an index is made of whole numbers, slices and ..., not {type(part).__name__}") from None
            if not -extent <= number < extent:
                raise IndexError(f"index {number} is out of bounds for dimension {dimension} with size {extent}")
            number %= extent
            extents.append((number, number + 1))
            local.append(0)
    empty = any(begin == end for begin, end in extents) or 0 in shape
    return extents, tuple(local), empty
