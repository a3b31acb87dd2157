"""Models of transformers, filled from a stream by transformers' own loading."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from headrace import _hf_files, _rehearsal
from headrace._errors import CancelledError, InvalidRequestError, UnsupportedError
from headrace._promises import Feed, Promise, first_floating_dtype, natural_order
from headrace._streamer import ModelStreamer
from headrace._torch import dtype_of, parse_device, shape_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")

_logger = logging.getLogger("headrace")

# What decides here and not in transformers.
_OURS = (
    "config", "device_map", "dtype", "torch_dtype", "generation_config", "ignore_mismatched_sizes", "output_loading_info",
    "state_dict", "trust_remote_code",
)  # fmt: skip


async def load_hf_model(
    path: str | os.PathLike[str],
    *,
    device: torch.device | str | int = "cuda",
    dtype: torch.dtype | str | None = None,
    model_class: Any = None,
    local_dir: str | os.PathLike[str] | None = None,
    trust_remote_code: bool = False,
    chunk_size: int | str | None = None,
    max_concurrency: int | None = None,
    model_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[PreTrainedModel, Path]:
    """Loads a model of transformers from wherever it is, its weights straight into their places, and never by way of
    a disk.

    Gives the model, in evaluation mode, and the folder with its small files: config, tokenizer, generation config.
    The model is the one that `model_class.from_pretrained(folder)` gives on the same files: parameters, buffers,
    dtypes, tied weights and generation config are equal, bit for bit, since transformers itself places the weights as
    they arrive.

    - `path`: the model's folder, as in `ModelStreamer`: `s3://bucket/model`, `hf://org/model`, a local folder, ...
    - `device`: where the model goes.
    - `dtype`: of the floating-point weights; None, or "auto": as the config and the files have it.
    - `model_class`: an Auto class or a class of models; None is `AutoModelForCausalLM`.
    - `local_dir`: where the small files go; None is a fresh temporary folder, which is the caller's to remove.
    - `trust_remote_code`: whether code that comes with the model may run.
    - `model_options`: further arguments of `from_pretrained`, such as `attn_implementation`.
    - `chunk_size`, `max_concurrency`, and all `options`: those of `ModelStreamer`, such as `memory_limit`, `revision`,
      `storage_options` and `progress`.

    The running event loop is not blocked: transformers, which is synchronous, works in a thread. Loadings of one
    process take turns, since transformers sets defaults of the whole process meanwhile. Cancelling the task ends the
    stream and the thread before it raises. On the host there is never more than `memory_limit` besides the model
    itself and the experts that are about to be joined.

    KeyError: the checkpoint lacks tensors of the model, or single experts; ValueError: shapes differ. Both name what,
    and both are raised before any weight is fetched (with transformers before 5.0: afterwards). Tensors that the
    model does not have are not fetched; transformers warns of them. Nothing stays uninitialised. `headrace.Error`s as
    in `ModelStreamer`.

        model, folder = await load_hf_model("s3://models/qwen2.5-7b", device="cuda")
        tokenizer = AutoTokenizer.from_pretrained(folder)
    """
    transformers = _import_transformers()
    placed = _device(device)
    for name in _OURS:
        if name in (model_options or {}):
            raise TypeError(
                f"model_options cannot hold {name!r}: load_hf_model decides that, or has an argument for it"
            )
    for name in ("include", "exclude", "tensors"):
        if name in options:
            raise TypeError(f"load_hf_model takes no {name!r}: a model needs all of its tensors")
    streaming = {"chunk_size": chunk_size, "max_concurrency": max_concurrency, **options}
    streamer = ModelStreamer(path, **streaming)
    if streamer.path.endswith(".safetensors"):
        raise InvalidRequestError(
            f"load_hf_model needs the folder of a model and its config.json: {streamer.path} is a file"
        )

    def at(name: str) -> ModelStreamer:
        return ModelStreamer(_join(streamer.path, name), **{**streaming, "revision": None})

    await streamer.open()
    folder = Path(local_dir) if local_dir is not None else Path(tempfile.mkdtemp(prefix="headrace-"))
    try:
        await streamer.download_metadata(folder)
        loading = _Loading(
            transformers,
            streamer,
            at,
            folder,
            device=placed,
            dtype=dtype,
            model_class=model_class,
            trust_remote_code=trust_remote_code,
            model_options=model_options or {},
        )
        return await loading.load(), folder
    except BaseException:
        if local_dir is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise


class _Loading:
    """One loading: what waits for a store runs on the event loop, what transformers does in a thread, in its turn."""

    def __init__(
        self,
        transformers: Any,
        streamer: ModelStreamer,
        at: Callable[[str], ModelStreamer],
        folder: Path,
        *,
        device: torch.device,
        dtype: torch.dtype | str | None,
        model_class: Any,
        trust_remote_code: bool,
        model_options: Mapping[str, Any],
    ) -> None:
        self._transformers = transformers
        self._streamer = streamer
        self._at = at
        self._folder = folder
        self._device = device
        self._dtype = dtype
        self._model_class = model_class or transformers.AutoModelForCausalLM
        self._trust = trust_remote_code
        self._options = dict(model_options)
        self._lock = threading.Lock()
        self._given_up = False
        self._feeds: list[Feed] = []

    async def load(self) -> PreTrainedModel:
        concrete, config = await self._in_turn(self._resolve)
        weights = getattr(config, "transformers_weights", None)
        extra = getattr(type(config), "extra_files", ())
        choice = await _hf_files.choose(self._streamer, self._at, weights, extra)
        dtype = await self._settle_dtype(config, choice)
        return await self._in_turn(functools.partial(self._load, concrete, config, choice.parts, dtype))

    async def _in_turn(self, act: Callable[[], T]) -> T:
        def run() -> T:
            with _turn.hold(lambda: self._given_up):
                try:
                    return act()
                finally:
                    self._close()

        return await _in_thread(run, self._give_up)

    def _give_up(self) -> None:
        """Has what runs in the thread raise, soon."""
        with self._lock:
            self._given_up = True
        _turn.look_again()
        self._close()

    def _close(self) -> None:
        with self._lock:
            feeds = list(self._feeds)
        for feed in feeds:
            feed.close()

    def _load(self, concrete: Any, config: Any, parts: list[_hf_files.Part], dtype: torch.dtype | str | None) -> Any:
        what = f"{concrete.__name__} from {self._streamer.path}"
        promises = self._promise(parts, None)
        options = {**self._options, "config": config, "output_loading_info": True}
        options["ignore_mismatched_sizes"] = True  # they are raised here, with their names and as ValueError
        if dtype is not None:
            options["dtype"] = dtype
        with _named_in_reports(self._streamer.path), _placing(self._transformers, self._device) as placing:
            options.update(placing)
            with _without_bars(self._transformers):
                quantization = copy.deepcopy(options.get("quantization_config"))  # it may be written to
                rehearsal = _rehearsal.rehearse(concrete, promises, {**options, "quantization_config": quantization})
            if rehearsal is not None:
                _rehearsal.raise_for(rehearsal, what)
                promises = self._promise(parts, rehearsal.order)
            try:
                model, info = concrete.from_pretrained(None, state_dict=promises, **options)
            except Exception:
                for feed in self._feeds:
                    if feed.error is not None:
                        raise feed.error from None
                raise
        self._check(model, info, promises, what)
        self._finish(model)
        return model

    def _resolve(self) -> tuple[Any, Any]:
        """The class of the model, and its config."""
        settings = {name: value for name, value in self._options.items() if name != "quantization_config"}
        settings["return_unused_kwargs"] = True
        if not hasattr(self._model_class, "_model_mapping"):  # no Auto class
            kind = getattr(self._model_class, "config_class", None)
            if kind is None:
                raise TypeError(f"model_class must be an Auto class or a class of models, not {self._model_class!r}")
            config, unused = kind.from_pretrained(self._folder, **settings)
            self._keep(unused)
            return self._model_class, config
        config, unused = self._transformers.AutoConfig.from_pretrained(
            self._folder, trust_remote_code=self._trust, **settings
        )
        self._keep(unused)
        with torch.device("meta"), _safe_on_meta():
            built = self._model_class.from_config(copy.deepcopy(config), trust_remote_code=self._trust)
        if type(built.config) is not type(config):
            # The class is that of the text model alone, and has its part of the config.
            quantization = getattr(config, "quantization_config", None)
            config = config.get_text_config()
            if quantization is not None:
                config.quantization_config = quantization
        return type(built), config

    def _keep(self, unused: Mapping[str, Any]) -> None:
        """Of the options, what the config did not take."""
        self._options = {name: value for name, value in self._options.items()
                         if name in unused or name == "quantization_config"}  # fmt: skip

    async def _settle_dtype(self, config: Any, choice: _hf_files.Choice) -> torch.dtype | str | None:
        """What `from_pretrained` would make of it: what "auto" means is to be found in files that it does not see."""
        if self._dtype is None and int(self._transformers.__version__.split(".")[0]) < 5:
            return None
        if self._dtype not in (None, "auto"):
            return self._dtype
        if getattr(config, "dtype", None) is not None or not choice.parts:
            return "auto"
        metadata = await _hf_files.index_metadata(self._streamer, choice.by_index)
        if "dtype" in metadata:
            return str(metadata["dtype"])
        infos = choice.parts[0].infos
        first = min(info.file for info in infos.values())
        return first_floating_dtype(
            {name: dtype_of(name, info.dtype) for name, info in infos.items() if info.file == first}
        )

    def _promise(self, parts: list[_hf_files.Part], order: list[str] | None) -> dict[str, Promise]:
        """Promises of all tensors. `order`: of those that will be taken; None where that is not known."""
        promises = {}
        for part in parts:
            taken = [name for name in order or sorted(part.infos, key=natural_order) if name in part.infos]
            feed = Feed(taken, functools.partial(_start, part.source, self._device), self._streamer.memory_limit)
            with self._lock:
                if self._given_up:
                    raise CancelledError("the loading was given up")
                self._feeds.append(feed)
            for name, info in part.infos.items():
                dtype = dtype_of(name, info.dtype)
                promises[name] = Promise(feed, name, dtype, shape_of(name, info.dtype, info.shape))
        return {name: promises[name] for name in sorted(promises, key=natural_order)}

    def _check(
        self, model: PreTrainedModel, info: Mapping[str, Any], promises: Mapping[str, Promise], what: str
    ) -> None:
        """Whether everything is there: also where nothing was rehearsed."""
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        mismatched = []
        for entry in info.get("mismatched_keys") or ():
            name, found, wanted = (entry, None, None) if isinstance(entry, str) else entry
            if found is None and name in promises:
                found, wanted = promises[name].shape, shapes.get(name)
            mismatched.append((name, found or (), wanted or ()))
        named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        empty = [name for name, tensor in named if tensor.is_meta]
        _rehearsal.raise_for_mismatched(mismatched, what)
        _rehearsal.raise_for_missing({*info.get("missing_keys", ()), *empty}, what)

    def _finish(self, model: Any) -> None:
        """What `from_pretrained` does with the folder's name, which it was not given here."""
        name = str(self._folder)
        for module in model.modules():
            config = getattr(module, "config", None)
            for holder, attribute in ((config, "_name_or_path"), (module, "name_or_path")):
                if getattr(holder, attribute, None) == "None":
                    setattr(holder, attribute, name)
        if model.can_generate():
            generation = self._transformers.GenerationConfig
            try:
                model.generation_config = generation.from_pretrained(self._folder)
            except OSError:  # then the settings are in config.json
                model.generation_config = generation.from_pretrained(
                    self._folder, config_file_name="config.json", _from_model_config=True
                )
            if self._trust and hasattr(model, "load_custom_generate"):
                with contextlib.suppress(OSError):  # there is none
                    generate = model.load_custom_generate(self._folder, trust_remote_code=True)
                    model.generate = functools.partial(generate, model=model)
        model.eval()


def _start(source: _hf_files.Source, device: torch.device, names: list[str]) -> Any:
    return source.stream_sync(device=device, tensors=names, order="requested")


# --- One after another ---


class _Turn:
    """Who loads. Loading sets torch's default dtype, and functions of transformers, for the whole process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False

    @contextlib.contextmanager
    def hold(self, given_up: Callable[[], bool]) -> Iterator[None]:
        """Waits for its turn. CancelledError where it is given up before."""
        with self._changed:
            self._changed.wait_for(lambda: given_up() or not self._taken)
            if given_up():
                raise CancelledError("the loading was given up")
            self._taken = True
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._changed.notify_all()

    def look_again(self) -> None:
        """Somebody may have given up."""
        with self._changed:
            self._changed.notify_all()


_turn = _Turn()


def _forget_turn() -> None:
    global _turn
    _turn = _Turn()


os.register_at_fork(after_in_child=_forget_turn)  # whoever loads in the parent does not load in the child


async def _in_thread(run: Callable[[], T], give_up: Callable[[], None]) -> T:
    """Runs in a thread that nobody else uses or waits for. A cancelled task gives up, and waits for the end of `run`."""
    loop = asyncio.get_running_loop()
    pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="headrace-load")
    running = loop.run_in_executor(pool, copy_context().run, run)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        giving = loop.run_in_executor(pool, give_up)
        both: list[asyncio.Future[Any]] = [running, giving]
        while not all(each.done() for each in both):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(both)
        if not running.cancelled():
            running.exception()  # that of giving up
        giving.result()
        raise
    except GeneratorExit:  # the loop is gone, and nobody will await anything here
        pool.submit(give_up)
        raise
    finally:
        pool.shutdown(wait=False)


# --- Where transformers is not as it should be for us ---


def _import_transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise ImportError('load_hf_model needs transformers: pip install "headrace[transformers]"') from None
    return transformers


def _device(given: Any) -> torch.device:
    """The device, with its number. `cuda` is the process's own under a launcher, and otherwise torch's current one."""
    device = parse_device(given)
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise UnsupportedError(
            f"device {str(device)!r}: torch finds no GPU here; load_hf_model(..., device='cpu') loads into host memory"
        )
    if device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK") or torch.cuda.current_device()))
    return device


@contextlib.contextmanager
def _placing(transformers: Any, device: torch.device) -> Iterator[dict[str, Any]]:
    """The options of `from_pretrained` that have it place weights on the device, after its allocator's warm-up.

    They ask for accelerate, of which the loading itself uses nothing where there is one device. Where accelerate is not
    there, the question is left out, for this thread.
    """
    if device.type == "cpu":
        yield {}
        return
    device_map = {"": device}
    if transformers.utils.is_accelerate_available():
        yield {"device_map": device_map}
        return
    loading = transformers.modeling_utils
    asks = getattr(loading, "check_and_set_device_map", None)
    if asks is None:
        raise ImportError(
            f"to place weights on {device}, transformers {transformers.__version__} needs accelerate: "
            "pip install accelerate"
        )
    thread = threading.get_ident()

    def answer(given: Any) -> Any:
        return given if threading.get_ident() == thread and given is device_map else asks(given)

    loading.check_and_set_device_map = answer
    try:
        yield {"device_map": device_map}
    finally:
        loading.check_and_set_device_map = asks


def _safe_on_meta() -> contextlib.AbstractContextManager[Any]:
    """What from_pretrained builds models under: code that comes with one may ask for numbers where there are none."""
    try:
        from transformers.initialization import meta_device_safe_creation_ops as safe
    except ImportError:
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = safe()
    return context


@contextlib.contextmanager
def _without_bars(transformers: Any) -> Iterator[None]:
    shown = transformers.utils.logging
    if not shown.is_progress_bar_enabled():
        yield
        return
    shown.disable_progress_bar()
    try:
        yield
    finally:
        shown.enable_progress_bar()


@contextlib.contextmanager
def _named_in_reports(path: str) -> Iterator[None]:
    """Has transformers' reports say where the weights come from. It was told of no place, and says None."""
    thread = threading.get_ident()

    def name(record: logging.LogRecord) -> bool:
        if record.thread == thread and isinstance(record.msg, str):
            for words in ("from: ", "checkpoint at "):
                record.msg = record.msg.replace(f"{words}None", f"{words}{path}")
        return True

    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(name)
    try:
        yield
    finally:
        logger.removeFilter(name)


def _join(uri: str, name: str) -> str:
    """The location of a file in a folder."""
    if "://" not in uri:
        return f"{uri}/{name}"
    folder, mark, query = uri.partition("?")
    return f"{folder.rstrip('/')}/{name}{mark}{query}"
