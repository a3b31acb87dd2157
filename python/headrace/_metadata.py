"""The small files beside the weights."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path, PurePosixPath

from headrace import _core
from headrace._bridge import call
from headrace._errors import InvalidRequestError, NotFoundError, UnsupportedError

# Weights, in whichever format: not what is wanted beside them.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".onnx_data", ".h5", ".msgpack", ".ckpt")

# Where a server cannot list: what models usually come with.
_USUAL = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "spiece.model",
    "sentencepiece.bpe.model", "source.spm", "target.spm", "preprocessor_config.json", "processor_config.json",
    "video_preprocessor_config.json", "feature_extractor.json", "image_processor.json", "chat_template.json",
    "chat_template.jinja", "model.safetensors.index.json", "configuration.json", "modules.json",
)  # fmt: skip

_AT_ONCE = 8


async def download(model: _core.Model, local_dir: str | os.PathLike[str]) -> Path:
    """See `ModelStreamer.download_metadata`."""
    folder = Path(local_dir)
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    names, certain = await _names(model)
    turns = asyncio.Semaphore(_AT_ONCE)

    async def fetch(name: str) -> None:
        async with turns:
            try:
                content = await call(lambda executor: model.read_file(os.fsencode(name), executor))
            except NotFoundError:
                if certain:
                    raise
                return
        await asyncio.to_thread(_write, folder / _checked(name), content)

    tasks = [asyncio.ensure_future(fetch(name)) for name in names]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return folder


async def _names(model: _core.Model) -> tuple[list[str], bool]:
    """The files to fetch, and whether they are known to be there."""
    try:
        listed: list[tuple[str, int]] = await call(model.list_files)
    except UnsupportedError:
        return list(_USUAL), False
    return [name for name, _ in listed if not name.lower().endswith(_WEIGHTS)], True


def _checked(name: str) -> PurePosixPath:
    """A name that stays inside of a folder: stores allow others."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise InvalidRequestError(f"the store holds a file whose name would leave the folder: {name!r}")
    return path


def _write(path: Path, content: bytes) -> None:
    """All of it or nothing: another process may read the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".headrace-")
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


