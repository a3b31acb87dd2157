"""What is known of a checkpoint and of its streams: plain tuples with names."""

from __future__ import annotations

from typing import NamedTuple


class TensorInfo(NamedTuple):
    """What a header says of one tensor."""

    name: str
    dtype: str
    """As safetensors writes it: `BF16`."""
    shape: tuple[int, ...]
    """Extents, the slowest first."""
    nbytes: int
    file: str
    """The name of the file that holds it."""


class FileInfo(NamedTuple):
    """A file of a checkpoint."""

    name: str
    nbytes: int
    """Of the whole file, its header included."""
    metadata: dict[str, str]
    """`__metadata__` of its header."""


class Statistics(NamedTuple):
    """What a checkpoint has cost so far, over all its streams."""

    requests: int
    """HTTP requests; reads of local files."""
    retries: int
    bytes: int
    """Received, headers and index included."""


class LoadResult(NamedTuple):
    """What `load_into` could not bring together."""

    missing_keys: list[str]
    """Names of the module for which the checkpoint holds nothing."""
    unexpected_keys: list[str]
    """Names of the checkpoint that the module does not have."""
