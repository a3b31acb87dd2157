"""ModelStreamer, and what needs no torch beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, cast

from headrace import _core
from headrace._errors import InvalidSafetensorsError
from headrace._info import FileInfo, LoadResult, Statistics, TensorInfo
from headrace._progress import Bar, Progress, make_bar
from headrace._source import Order, Source

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import nn
    from typing_extensions import Unpack

    from headrace._slices import Block
    from headrace._streams import AsyncTensorStream, TensorStream
    from headrace._torch import Placement

KeyMapping = Callable[[str], "str | None"] | Mapping[str, "str | None"]


class SourceOptions(TypedDict, total=False):
    """The options of `ModelStreamer`, of which `stream`, `load_file` and `load_files` take the same."""

    chunk_size: int | str | None
    max_concurrency: int | None
    memory_limit: int | str | None
    threads: int | None
    include: str | Iterable[str] | None
    exclude: str | Iterable[str] | None
    tensors: Iterable[str] | None
    revision: str | None
    storage_options: Mapping[str, Any] | None
    connect_timeout: float | None
    stall_timeout: float | None
    deadline: float | None
    retries: int | None


class ModelStreamer:
    """Streams the weights of a checkpoint as torch tensors, straight into memory, and never to disk.

    `path` is `s3://bucket/prefix`, `gs://...`, `az://...`, `hf://org/repo`, `https://host/folder`, a local folder, or a single
    `.safetensors` file in any of them. Making a streamer does nothing yet; the index and the headers are read when they are
    first needed, and once. Many streams of one streamer may run at once, in any threads; it can be pickled, and used in
    forked and spawned processes.

    Options, all by keyword:

    - `chunk_size` (16 MiB): the most bytes of one request. Sizes are numbers of bytes or texts such as `"16MiB"`.
    - `max_concurrency` (32): the most connections; fewer are opened where more do not help.
    - `memory_limit` (1 GiB): bytes that a stream holds, arriving or not yet taken. At least `chunk_size`. What has been taken
      is the caller's own and does not count.
    - `threads` (half the cores, 1 to 8): threads that receive, shared by all streamers with the same number.
    - `include`, `exclude`: globs of tensor names, one or several. `tensors`: names or globs; nothing else is fetched.
    - `revision`: the branch, tag or commit of an `hf://` location.
    - `storage_options`: how the store is reached, instead of what its own tools would find: `endpoint`, `region`,
      `path_style`, `anonymous`, `access_key_id`, `secret_access_key`, `session_token`, `profile`, `requester_pays`, `token`,
      `account`, `ca_file`, `certificate_file`, `key_file`, `verify_tls`, `headers`.
    - `progress` (False): True shows a bar (tqdm) where standard error is a terminal, `"always"` also elsewhere; of a group of
      processes the first one does.
    - `connect_timeout` (5), `stall_timeout` (20), `deadline` (none): seconds. `retries` (5): of one request, without progress
      in between.

    `HEADRACE_CHUNK_SIZE`, `HEADRACE_MAX_CONCURRENCY`, `HEADRACE_MEMORY_LIMIT` and `HEADRACE_THREADS` change the defaults.

    Errors are `headrace.Error`s, each also a built-in: `NotFoundError` (FileNotFoundError, ValueError), `AccessDeniedError`
    (PermissionError), `InvalidRequestError` and `InvalidSafetensorsError` (ValueError), `TimedOutError` (TimeoutError), and
    so on.

        streamer = ModelStreamer("s3://models/minilm")
        async for name, tensor in streamer.stream(device="cuda", dtype=torch.bfloat16):
            ...
    """

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
        progress: Progress = False,
        connect_timeout: float | None = None,
        stall_timeout: float | None = None,
        deadline: float | None = None,
        retries: int | None = None,
    ) -> None:
        self._source = Source(
            path,
            chunk_size=chunk_size,
            max_concurrency=max_concurrency,
            memory_limit=memory_limit,
            threads=threads,
            include=include,
            exclude=exclude,
            tensors=tensors,
            revision=revision,
            storage_options=storage_options,
            connect_timeout=connect_timeout,
            stall_timeout=stall_timeout,
            deadline=deadline,
            retries=retries,
        )
        self._progress: Progress = progress

    @property
    def path(self) -> str:
        """The location, without a trailing slash."""
        return self._source.path

    @property
    def chunk_size(self) -> int:
        """Bytes."""
        return self._source.chunk_size

    @property
    def max_concurrency(self) -> int:
        return self._source.max_concurrency

    @property
    def memory_limit(self) -> int:
        """Bytes."""
        return self._source.memory_limit

    @property
    def statistics(self) -> Statistics:
        """Requests, retries and bytes so far, over all streams. Zeros before anything was asked for."""
        return self._source.statistics()

    def __repr__(self) -> str:
        known = self._source._infos
        held = f", {len(known)} tensors" if known is not None else ""
        return f"ModelStreamer({self.path!r}{held})"

    # The catalogue

    async def open(self) -> ModelStreamer:
        """Reads and checks the index and the headers, on the running event loop, and no weights. Gives the streamer itself.

        Never needed. After it `keys`, `info` and `files` have nothing to wait for: so that is how they are used in
        asynchronous code.

            streamer = await ModelStreamer("s3://models/minilm").open()
            names = streamer.keys()
        """
        _check_format(await self._source.open_async())
        return self

    def keys(self) -> list[str]:
        """The names of all tensors, by file and by place in it, whatever `include` and `tensors` say. Blocks, at the first
        use, until the headers have been read: see `open`."""
        return list(self._source.infos())

    def info(self, name: str) -> TensorInfo:
        """Dtype, shape, size and file of one tensor. KeyError where there is none of that name. Blocks as `keys` does.

        >>> streamer.info("wte.weight")
        TensorInfo(name='wte.weight', dtype='F32', shape=(50257, 768), nbytes=154389504, file='model.safetensors')
        """
        return _find(self._source, name)

    def files(self) -> list[FileInfo]:
        """The files that hold tensors, with their metadata. Blocks as `keys` does."""
        return self._source.files()

    def read_file(self, name: str) -> bytes:
        """The content of a small file beside the weights, such as `config.json`; at most 256 MiB. Blocks. NotFoundError where
        there is none."""
        return cast(bytes, self._source.open().read_file(os.fsencode(name)))

    async def read_file_async(self, name: str) -> bytes:
        """`read_file` on the running event loop."""
        from headrace._bridge import call

        model = await self._source.open_async()
        return cast(bytes, await call(lambda executor: model.read_file(os.fsencode(name), executor)))

    async def download_metadata(self, local_dir: str | os.PathLike[str]) -> Path:
        """Downloads everything under the location, at any depth, but the weights: not `*.safetensors`, nor `.bin`, `.pt`,
        `.gguf` and the like. Gives `local_dir`, made where it was not there.

        A web server cannot list: there, what models usually come with (config, tokenizer, ...), as far as it is there.

            local = await streamer.download_metadata("/tmp/minilm")
            tokenizer = AutoTokenizer.from_pretrained(local)
        """
        from headrace import _metadata

        return await _metadata.download(await self._source.open_async(), local_dir)

    # The weights

    def stream(
        self,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        tensors: Iterable[str] | None = None,
        order: Order = "completion",
    ) -> AsyncTensorStream[tuple[str, torch.Tensor]]:
        """Streams `(name, tensor)`, for `async for`: as tensors are complete, which is fastest, or with `order="requested"` as
        `tensors`, or the files, have them.

        `device`: where they land; None is host memory. `dtype`: casts floating-point tensors, on that device, and no others.
        `tensors`: names or globs, instead of the streamer's. Each tensor owns its memory. One that is not taken holds the
        stream up once `memory_limit` is reached.

            async for name, tensor in streamer.stream(device="cuda"):
                parameters[name].data = tensor
        """
        from headrace._streams import AsyncTensorStream

        placed = _placement(device, dtype)
        wanted = None if tensors is None else list(tensors)

        async def start() -> _core.Stream:
            model = _check_format(await self._source.open_async())
            return self._source.start(
                model, device=placed.engine, order=order, tensors=wanted, memory=placed.memory()
            )

        return AsyncTensorStream(start, placed, self._make_bar, self.path)

    def stream_sync(
        self,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        tensors: Iterable[str] | None = None,
        order: Order = "completion",
    ) -> TensorStream[tuple[str, torch.Tensor]]:
        """`stream` for `for`: from any thread, also one whose event loop is running, which it then blocks.

            for name, tensor in streamer.stream_sync():
                print(name, tensor.shape)
        """
        from headrace._streams import TensorStream

        placed = _placement(device, dtype)
        wanted = None if tensors is None else list(tensors)

        def start() -> _core.Stream:
            model = _check_format(self._source.open())
            return self._source.start(
                model, device=placed.engine, order=order, tensors=wanted, memory=placed.memory()
            )

        return TensorStream(start, placed, self._make_bar, self.path)

    async def state_dict(
        self, *, device: torch.device | str | int | None = None, dtype: torch.dtype | None = None
    ) -> dict[str, torch.Tensor]:
        """All tensors by name, in the order of the files.

            module.load_state_dict(await streamer.state_dict())
        """
        found = {}
        async with self.stream(device=device, dtype=dtype) as arriving:
            async for name, tensor in arriving:
                found[name] = tensor
        return {name: found[name] for name in self._source.infos() if name in found}

    async def load_into(
        self,
        module: nn.Module,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        strict: bool = True,
        key_mapping: KeyMapping | None = None,
    ) -> LoadResult:
        """Fills a module: each tensor replaces the parameter or persistent buffer of its name as it arrives.

        What was there is dropped, not copied into: dtypes are those of the checkpoint, or `dtype`. `requires_grad` is kept.
        Of parameters that are tied the checkpoint need hold one: the others are tied to it again.
        `tie_weights()` is called once at the end where the module has it. Buffers that `state_dict()` would leave out keep
        their values.

        `device`: where everything goes; None: where each entry is. `key_mapping`, a function or a mapping, renames tensors of
        the checkpoint, or skips them by None; a name that a mapping lacks stays.

        ValueError, before anything is fetched: a shape that differs, an entry on `meta` without `device`, two tensors for one
        entry. KeyError with `strict`: names that the checkpoint or the module lacks; before anything is fetched too, unless
        `tie_weights()` may still fill them.

            with headrace.empty_weights():
                module = MyModel(config)
            await streamer.load_into(module, device="cuda")
        """
        from headrace import _load

        return await _load.load_into(
            self, module, device=device, dtype=dtype, strict=strict, key_mapping=key_mapping
        )

    def get_slice(
        self,
        name: str,
        index: Any = ...,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """`tensor[index]` of one tensor, of which only the block that holds it is fetched. `index` is made of whole numbers,
        slices with positive steps, and `...`. Blocks. KeyError where there is no such tensor, IndexError outside of it.

            rows = streamer.get_slice("lm_head.weight", slice(0, 4096))
            block = streamer.get_slice("lm_head.weight", (..., slice(512, 1024)))
        """
        block = self._block(name, index, device, dtype)
        if block.empty:
            return block.nothing()
        stream = block.start()
        try:
            tensor = stream.next()
        finally:
            stream.close()
        return block.take(tensor)

    async def get_slice_async(
        self,
        name: str,
        index: Any = ...,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """`get_slice` on the running event loop."""
        from headrace._bridge import call

        await self.open()
        block = self._block(name, index, device, dtype)
        if block.empty:
            return block.nothing()
        stream = block.start()
        try:
            tensor = await call(stream.next)
        finally:
            await call(stream.close)
        return block.take(tensor)

    def _block(self, name: str, index: Any, device: Any, dtype: Any) -> Block:
        from headrace._slices import Block

        _check_format(self._source.open())
        return Block(self._source, _find(self._source, name), index, _placement(device, dtype))

    def _make_bar(self) -> Bar | None:
        return make_bar(self._progress, self.path.rsplit("/", 1)[-1])


class Tensors:
    """The tensors of a checkpoint as `headrace.stream` gives them: for `for` and for `async for`, each time a stream of its
    own."""

    def __init__(self, source: Source, device: str, order: Order, progress: Progress) -> None:
        self._source = source
        self._device = device
        self._order: Order = order
        self._progress: Progress = progress

    def __repr__(self) -> str:
        return f"<headrace.stream of {self._source.path}>"

    def __iter__(self) -> TensorStream[_core.Tensor]:
        from headrace._streams import TensorStream

        def start() -> _core.Stream:
            return self._source.start(self._source.open(), device=self._device, order=self._order)

        return TensorStream(start, _unchanged, self._make_bar, self._source.path)

    def __aiter__(self) -> AsyncTensorStream[_core.Tensor]:
        from headrace._streams import AsyncTensorStream

        async def start() -> _core.Stream:
            return self._source.start(await self._source.open_async(), device=self._device, order=self._order)

        return AsyncTensorStream(start, _unchanged, self._make_bar, self._source.path)

    def _make_bar(self) -> Bar | None:
        return make_bar(self._progress, self._source.path.rsplit("/", 1)[-1])


def stream(
    path: str | os.PathLike[str],
    *,
    device: str = "cpu",
    order: Order = "completion",
    progress: Progress = False,
    **options: Unpack[SourceOptions],
) -> Tensors:
    """Streams a checkpoint without torch: objects with `name`, `dtype`, `shape`, `nbytes`, `__dlpack__` and the buffer
    protocol, which NumPy, JAX, CuPy and others take without a copy. Options and errors are those of `ModelStreamer`.

        for tensor in headrace.stream("s3://models/minilm"):
            array = numpy.from_dlpack(tensor)
    """
    return Tensors(Source(path, **options), device, order, progress)


def load_file(
    filename: str | os.PathLike[str], device: torch.device | str | int = "cpu", **options: Unpack[SourceOptions]
) -> dict[str, torch.Tensor]:
    """`safetensors.torch.load_file`, of a file or a whole checkpoint, anywhere: all tensors by name. Blocks. Options and errors
    are those of `ModelStreamer`.

        weights = headrace.load_file("s3://models/minilm/model.safetensors", device="cuda:0")
    """
    return _load_all(Source(filename, **options), device)


def load_files(
    filenames: Iterable[str | os.PathLike[str]],
    device: torch.device | str | int = "cpu",
    **options: Unpack[SourceOptions],
) -> dict[str, torch.Tensor]:
    """`load_file` of several, into one dictionary. ValueError where two of them hold a tensor of the same name."""
    found: dict[str, torch.Tensor] = {}
    for filename in filenames:
        for name, tensor in _load_all(Source(filename, **options), device).items():
            if name in found:
                raise ValueError(f"tensor {name!r} is in {os.fspath(filename)} and in a file before it")
            found[name] = tensor
    return found


def _load_all(source: Source, device: Any) -> dict[str, torch.Tensor]:
    from headrace._streams import TensorStream

    placed = _placement(device, None)

    def start() -> _core.Stream:
        return source.start(source.open(), device=placed.engine, order="completion")

    with TensorStream(start, placed, lambda: None, source.path) as arriving:
        found = dict(arriving)
    return {name: found[name] for name in source.infos() if name in found}


def _unchanged(tensor: _core.Tensor) -> _core.Tensor:
    return tensor


def _placement(device: Any, dtype: Any) -> Placement:
    try:
        from headrace._torch import Placement
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError('this needs torch: pip install "headrace[torch]"; headrace.stream() does not') from None
    return Placement(device, dtype)


def _find(source: Source, name: str) -> TensorInfo:
    found = source.infos().get(name)
    if found is None:
        raise KeyError(f"no tensor is called {name!r} in {source.path}")
    return found


def _check_format(model: _core.Model) -> _core.Model:
    """Files say for which framework they were written; other frameworks lay some tensors out otherwise."""
    for name, _, metadata in model.files():
        written = metadata.get("format", "pt")
        if written != "pt":
            raise InvalidSafetensorsError(
                f"{name} was written for {written!r}, not for torch ('pt'); headrace.stream() reads it as it is",
                uri=model.uri,
            )
    return model
