"""Which tensors of which files a model is made of: chosen as `from_pretrained` chooses them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath
from typing import Any, NamedTuple, Protocol

from headrace._errors import InvalidRequestError, InvalidSafetensorsError
from headrace._info import FileInfo, TensorInfo
from headrace._promises import Tensors

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class Source(Protocol):
    """What is asked of a `ModelStreamer`."""

    async def open(self) -> Any: ...

    def keys(self) -> list[str]: ...

    def info(self, name: str) -> TensorInfo: ...

    def files(self) -> list[FileInfo]: ...

    async def read_file_async(self, name: str) -> bytes: ...

    def stream_sync(self, *, device: Any = None, tensors: Iterable[str] | None = None, order: Any = ...) -> Tensors: ...


class Part(NamedTuple):
    """Tensors of one source."""

    source: Source
    infos: dict[str, TensorInfo]


class Choice(NamedTuple):
    """What a model is read from."""

    parts: list[Part]
    """No name is in two of them."""
    by_index: str | None
    """The index that was, or may have been, followed."""


async def choose(folder: Source, at: Callable[[str], Source], weights: str | None, extra: Iterable[str]) -> Choice:
    """What a model is read from.

    `folder` is the model's folder, opened; `at` gives the source of one file in it. `weights` is what the config
    calls `transformers_weights`: a file or an index, taken where it is named. Otherwise `model.safetensors`, then the
    index, then all that is at the top. `extra`: files that are read as well where they are there. An index
    that is broken, or names a file that is not there, is an error and never a reason to take something else.
    """
    index = None
    if weights is not None:
        parts = await _named(folder, at, _inside(weights))
        index = None if weights.endswith(".safetensors") else weights
    else:
        single = await _single(folder, at)
        parts = [await _whole(single or folder)]
        index = None if single is not None else INDEX
    for name in extra:
        source = at(_inside(name))
        try:
            more = await _whole(source)
        except FileNotFoundError:
            continue
        for part in parts:
            for taken in more.infos:
                part.infos.pop(taken, None)
        parts.append(more)
    return Choice([part for part in parts if part.infos], index)


async def index_metadata(folder: Source, index: str | None) -> dict[str, Any]:
    """The `metadata` of the index; empty where there is none."""
    if index is None:
        return {}
    try:
        found = json.loads(await folder.read_file_async(index))
    except FileNotFoundError:
        return {}
    metadata = found.get("metadata") if isinstance(found, dict) else None
    return metadata if isinstance(metadata, dict) else {}


async def _single(folder: Source, at: Callable[[str], Source]) -> Source | None:
    if [file.name for file in folder.files()] == [SINGLE]:
        return folder
    # Beside an index, or beside files of another precision, it goes before them.
    single = at(SINGLE)
    try:
        await single.open()
    except (FileNotFoundError, PermissionError):  # a store that may not list says "denied" of what is not there
        return None
    return single


async def _named(folder: Source, at: Callable[[str], Source], weights: str) -> list[Part]:
    if weights.endswith(".safetensors"):
        return [await _whole(at(weights))]
    if not weights.endswith(".safetensors.index.json"):
        raise InvalidRequestError(
            f"transformers_weights in config.json names {weights!r}: neither *.safetensors nor *.safetensors.index.json"
        )
    placed: dict[str, list[str]] = {}
    content = await folder.read_file_async(weights)
    for name, file in _weight_map(content, weights).items():
        placed.setdefault(_inside(str(PurePosixPath(weights).parent / file)), []).append(name)
    parts = []
    for file, names in sorted(placed.items()):
        whole = await _whole(at(file))
        lacking = [name for name in names if name not in whole.infos]
        if lacking:
            raise InvalidSafetensorsError(
                f"{weights} places the tensor {lacking[0]!r} in {file}, which does not hold it"
            )
        parts.append(Part(whole.source, {name: whole.infos[name] for name in names}))
    return parts


def _weight_map(content: bytes, index: str) -> dict[str, str]:
    try:
        found = json.loads(content)["weight_map"]
    except (ValueError, KeyError, TypeError):
        raise InvalidSafetensorsError(f"{index} is not an index: it must be JSON with a weight_map") from None
    if not isinstance(found, dict) or not all(isinstance(file, str) for file in found.values()):
        raise InvalidSafetensorsError(f"{index} is not an index: its weight_map must map tensors to files")
    return found


async def _whole(source: Source) -> Part:
    await source.open()
    return Part(source, {name: source.info(name) for name in source.keys()})


def _inside(name: str) -> str:
    """A file below the model's folder, and nowhere else."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise InvalidRequestError(f"config.json or an index names {name!r}, which is not inside of the model's folder")
    return str(path)
