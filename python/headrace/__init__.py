"""headrace streams safetensors weights from object storage straight into memory.

    from headrace import ModelStreamer

    async for name, tensor in ModelStreamer("s3://models/minilm").stream():
        ...

`ModelStreamer` gives torch tensors; `stream` gives tensors for any library that speaks DLPack, without torch. Importing this
package imports neither torch nor numpy, and starts nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace import _core
from headrace._core import Tensor
from headrace._errors import (
    AccessDeniedError,
    CancelledError,
    ConnectError,
    Error,
    InternalError,
    InvalidRequestError,
    InvalidSafetensorsError,
    NotFoundError,
    ObjectChangedError,
    OutOfMemoryError,
    ProtocolError,
    ThrottledError,
    TimedOutError,
    TLSError,
    TruncatedError,
    UnavailableError,
    UnsupportedError,
)
from headrace._info import FileInfo, LoadResult, Statistics, TensorInfo
from headrace._streamer import ModelStreamer, load_file, load_files, stream

if TYPE_CHECKING:
    from headrace._modules import empty_weights, missing_parameters

__version__ = _core.version

__all__ = [
    "AccessDeniedError",
    "CancelledError",
    "ConnectError",
    "Error",
    "FileInfo",
    "InternalError",
    "InvalidRequestError",
    "InvalidSafetensorsError",
    "LoadResult",
    "ModelStreamer",
    "NotFoundError",
    "ObjectChangedError",
    "OutOfMemoryError",
    "ProtocolError",
    "Statistics",
    "TLSError",
    "Tensor",
    "TensorInfo",
    "ThrottledError",
    "TimedOutError",
    "TruncatedError",
    "UnavailableError",
    "UnsupportedError",
    "empty_weights",
    "load_file",
    "load_files",
    "load_hf_model",
    "missing_parameters",
    "stream",
]

# What needs torch, or transformers, is imported when it is used.
_LATER = {
    "empty_weights": "headrace._modules",
    "missing_parameters": "headrace._modules",
    "load_hf_model": "headrace._transformers",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(_LATER[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
