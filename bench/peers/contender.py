#!/usr/bin/env python3
"""Reads one checkpoint once with one library, in a process of its own, and reports what that took.

    contender.py [--keep] [--memory-limit BYTES] NAME URI

One line of JSON on stdout. The clock and the processor time begin once everything is imported and
end with the last tensor; memory is that of the whole process, beside what the interpreter and torch
take. URI is s3://bucket/prefix or a folder; where S3 is, and what to trust, stands in the
environment. Every library runs with its own defaults; `--memory-limit` is headrace's.

Each contender is a generator of (name, tensor), written as the documentation of its library has it.
Tensors lie in memory of their own: what would come as a view of a mapped file is copied, as no byte
of it has been read before."""

import argparse
import asyncio
import collections
import concurrent.futures
import json
import os
import pathlib
import resource
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from importlib.metadata import version

import torch

Tensors = Iterator[tuple[str, torch.Tensor]]
AsyncTensors = AsyncIterator[tuple[str, torch.Tensor]]

CHUNK = 16 << 20
CONNECTIONS = 8


def peak_rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Consumer:
    """Takes tensors, and drops or keeps them."""

    def __init__(self, *, keep: bool):
        self._kept: dict[str, torch.Tensor] | None = {} if keep else None
        self.count = 0
        self.bytes = 0
        self.first: float | None = None

    def take(self, name: str, tensor: torch.Tensor) -> None:
        if self.first is None:
            self.first = time.monotonic()
        self.count += 1
        self.bytes += tensor.nbytes
        if self._kept is not None:
            self._kept[name] = tensor

    # What a loop names stays until its next turn: so the names are removed.

    def consume(self, tensors: Tensors) -> None:
        for name, tensor in tensors:
            self.take(name, tensor)
            del tensor

    async def consume_async(self, tensors: AsyncTensors) -> None:
        async for name, tensor in tensors:
            self.take(name, tensor)
            del tensor


# ---- The contenders: import now, read when called ------------------------------------------------


def headrace(uri: str, memory_limit: int) -> Callable[[], Tensors]:
    from headrace import ModelStreamer

    return lambda: ModelStreamer(uri, memory_limit=memory_limit).stream_sync()


def headrace_async(uri: str, memory_limit: int) -> Callable[[], AsyncTensors]:
    from headrace import ModelStreamer

    return lambda: ModelStreamer(uri, memory_limit=memory_limit).stream()


def flyte(uri: str, _memory_limit: int) -> Callable[[], AsyncTensors]:
    import flyte.app.extras._model_loader.loader  # noqa: F401  (imported by the first stream otherwise)
    from flyte.extras.model_streamer import ModelStreamer

    return lambda: ModelStreamer(uri).stream()


def runai(uri: str, _memory_limit: int) -> Callable[[], Tensors]:
    from runai_model_streamer import SafetensorsStreamer, list_safetensors

    def read() -> Tensors:
        with SafetensorsStreamer() as streamer:
            streamer.stream_files(list_safetensors(uri))
            yield from streamer.get_tensors()

    return read


def obstore(uri: str, _memory_limit: int) -> Callable[[], Tensors]:
    import obstore
    from obstore.store import LocalStore, S3Store
    from safetensors.torch import _TYPES as dtypes

    def make_store() -> tuple[S3Store | LocalStore, str]:
        if not uri.startswith("s3://"):
            return LocalStore(uri), ""
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        options = {"allow_http": True, "allow_invalid_certificates": True, "timeout": "170s"}
        endpoint = os.environ["AWS_ENDPOINT_URL"]
        return S3Store(
            bucket, endpoint=endpoint, virtual_hosted_style_request=False, client_options=options
        ), prefix

    def read() -> Tensors:
        store, prefix = make_store()
        listed = obstore.list_with_delimiter(store, prefix or None)["objects"]
        paths = sorted(item["path"] for item in listed if item["path"].endswith(".safetensors"))
        with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as workers:
            plan = []
            for path, (begin, header) in zip(
                paths, workers.map(lambda path: read_header(store, path), paths), strict=True
            ):
                header.pop("__metadata__", None)
                plan += [(path, begin, name, entry) for name, entry in header.items()]
            yield from fetch(store, workers, plan)

    def read_header(store, path: str) -> tuple[int, dict]:
        [length] = struct.unpack("<Q", obstore.get_range(store, path, start=0, length=8).to_bytes())
        return 8 + length, json.loads(
            obstore.get_range(store, path, start=8, length=length).to_bytes()
        )

    def fetch(store, workers, plan) -> Tensors:
        # Each tensor in ranges, twice as many of them at once as there are workers; tensors in the
        # order of the files.
        waiting: collections.deque = collections.deque()
        under_way = 0
        for path, base, name, entry in plan:
            begin, end = (base + offset for offset in entry["data_offsets"])
            starts = range(begin, end, CHUNK)
            parts = [
                workers.submit(obstore.get_range, store, path, start=at, end=min(at + CHUNK, end))
                for at in starts
            ]
            waiting.append((name, entry, parts))
            under_way += len(parts)
            while under_way > 2 * CONNECTIONS:
                name, entry, parts = waiting.popleft()
                under_way -= len(parts)
                yield name, assemble(entry, parts)
        for name, entry, parts in waiting:
            yield name, assemble(entry, parts)

    def assemble(entry: dict, parts: list) -> torch.Tensor:
        if len(parts) == 1:
            data = memoryview(parts[0].result())
        else:
            data, at = bytearray(entry["data_offsets"][1] - entry["data_offsets"][0]), 0
            for part in parts:
                piece = memoryview(part.result())
                data[at : at + len(piece)] = piece
                at += len(piece)
        return torch.frombuffer(data, dtype=dtypes[entry["dtype"]]).view(entry["shape"])

    return read


def safetensors(uri: str, _memory_limit: int) -> Callable[[], Tensors]:
    from safetensors import safe_open

    def read() -> Tensors:
        for path in sorted(pathlib.Path(uri).glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  (it is no mapping)
                    yield name, file.get_tensor(name).clone()

    return read


def fastsafetensors(uri: str, _memory_limit: int) -> Callable[[], Tensors]:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    def read() -> Tensors:
        # A file at a time: it holds a whole one.
        for path in sorted(str(path) for path in pathlib.Path(uri).glob("*.safetensors")):
            loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True)
            try:
                loader.add_filenames({0: [path]})
                buffers = loader.copy_files_to_device()
                for name in buffers.key_to_rank_lidx:
                    yield name, buffers.get_tensor(name)
                del buffers
            finally:
                loader.close()

    return read


CONTENDERS = {
    "headrace": (headrace, "headrace"),
    "headrace-async": (headrace_async, "headrace"),
    "flyte": (flyte, "flyte"),
    "runai": (runai, "runai-model-streamer"),
    "obstore": (obstore, "obstore"),
    "safetensors": (safetensors, "safetensors"),
    "fastsafetensors": (fastsafetensors, "fastsafetensors"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="keep every tensor to the end")
    parser.add_argument(
        "--memory-limit",
        type=int,
        metavar="BYTES",
        default=1 << 30,
        help="headrace's (default: 1 GiB)",
    )
    parser.add_argument("name", choices=CONTENDERS)
    parser.add_argument("uri")
    arguments = parser.parse_args()
    make, package = CONTENDERS[arguments.name]
    # What a library prints must not mix with the statistics.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    bare = peak_rss()
    read = make(arguments.uri, arguments.memory_limit)
    consumer = Consumer(keep=arguments.keep)
    processor_before, start = processor_seconds(), time.monotonic()
    tensors = read()
    if isinstance(tensors, AsyncIterator):
        asyncio.run(consumer.consume_async(tensors))
    else:
        consumer.consume(tensors)
    seconds, processor = time.monotonic() - start, processor_seconds() - processor_before
    statistics = {
        "tensors": consumer.count,
        "bytes": consumer.bytes,
        "seconds": seconds,
        "first_tensor_seconds": None if consumer.first is None else consumer.first - start,
        "cpu_seconds": processor,
        "peak_rss_bytes": peak_rss(),
        "bare_rss_bytes": bare,
        "version": version(package),
        "torch": torch.__version__,
    }
    print(json.dumps(statistics), file=output, flush=True)


if __name__ == "__main__":
    main()
