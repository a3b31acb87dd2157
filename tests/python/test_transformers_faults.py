"""`load_hf_model` where something is missing, wrong, slow, or given up."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hf_compare import assert_same_model  # noqa: E402
from hf_models import SAMPLES, SMALL, Sample, change_config, rewrite  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from scripted_tensors import ScriptedStream  # noqa: E402

import headrace  # noqa: E402
from headrace import _transformers  # noqa: E402
from headrace._promises import Feed, Promise  # noqa: E402

BY_NAME = {sample.name: sample for sample in SAMPLES}

MAJOR = int(transformers.__version__.split(".")[0])

rehearses = pytest.mark.skipif(
    int(transformers.__version__.split(".")[0]) < 5,
    reason="transformers before 5.0 is not rehearsed, and fuses no experts",
)


def saved(name: str, folder: Path) -> Path:
    BY_NAME[name].save(folder)
    return folder


def load(path: Any, **options: Any) -> Any:
    return asyncio.run(headrace.load_hf_model(path, **{"device": "cpu", **options}))[0]


def drop(folder: Path, *names: str) -> None:
    def change(tensors: dict[str, Any]) -> dict[str, Any]:
        return {name: tensor for name, tensor in tensors.items() if name not in names}

    before = set(load_file(folder / "model.safetensors"))
    assert before >= set(names)
    rewrite(folder, change)


def wait_until(condition: Callable[[], bool], what: str = "it did not come about") -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


class Streams:
    """What `ModelStreamer.stream_sync` gave, and what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.scripted: list[ScriptedStream] = []
        self.script: dict[str, Any] | None = None


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[Streams]:
    """Every stream is seen; with a `script` it follows that."""
    seen = Streams()
    original = headrace.ModelStreamer.stream_sync

    def stream_sync(self: Any, *, tensors: Any = None, **options: Any) -> Any:
        names = list(tensors)
        seen.asked.append(names)
        stream = original(self, tensors=names, **options)
        if seen.script is None:
            return stream
        seen.scripted.append(ScriptedStream(list(stream), **seen.script))
        return seen.scripted[-1]

    monkeypatch.setattr(headrace.ModelStreamer, "stream_sync", stream_sync)
    yield seen
    for stream in seen.scripted:
        stream.close()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


# --- What is missing or wrong ---


def test_a_missing_tensor_is_a_key_error_that_names_it(tmp_path, streams, temporary):
    folder = saved("llama", tmp_path / "model")
    drop(folder, "model.layers.1.mlp.up_proj.weight", "model.norm.weight")
    with pytest.raises(KeyError, match=r"lacks 2 .*'model\.layers\.1\.mlp\.up_proj\.weight', 'model\.norm\.weight'"):
        load(folder)
    assert list(temporary.glob("headrace-*")) == [], "the temporary folder is left behind"


@rehearses
@pytest.mark.parametrize("dropped", ["model.norm.weight", "model.layers.0.mlp.experts.2.up_proj.weight"])
def test_what_is_missing_is_said_before_anything_is_fetched(tmp_path, streams, dropped):
    folder = saved("qwen3-moe", tmp_path / "model")
    drop(folder, dropped)
    with pytest.raises(KeyError, match=dropped.replace(".", r"\.")):
        load(folder)
    assert streams.asked == []


@rehearses
@pytest.mark.parametrize("name, row", [
    ("mixtral", "model.layers.1.block_sparse_moe.experts.{}.w{}.weight"),
    ("qwen3-moe", "model.layers.1.mlp.experts.{}.{}_proj.weight"),
])  # fmt: skip
def test_a_group_that_lacks_its_last_expert_is_a_key_error_that_names_its_tensors(tmp_path, streams, name, row):
    folder = saved(name, tmp_path / "model")
    kinds = ("1", "2", "3") if name == "mixtral" else ("gate", "up", "down")
    dropped = [row.format(3, kind) for kind in kinds]
    drop(folder, *dropped)
    with pytest.raises(KeyError) as raised:
        load(folder)
    for each in dropped:
        assert repr(each) in raised.value.args[0]
    assert streams.asked == []


@rehearses
def test_a_group_without_any_of_one_kind_is_a_key_error_that_names_the_kind(tmp_path, streams):
    folder = saved("qwen3-moe", tmp_path / "model")
    drop(folder, *(f"model.layers.0.mlp.experts.{number}.up_proj.weight" for number in range(4)))
    with pytest.raises(KeyError, match=r"up_proj"):
        load(folder)
    assert streams.asked == []


def test_a_tensor_of_another_shape_is_a_value_error_with_both_shapes(tmp_path, streams):
    folder = saved("llama", tmp_path / "model")
    rewrite(folder, lambda tensors: {**tensors, "model.norm.weight": torch.ones(7)})
    with pytest.raises(ValueError, match=r"'model\.norm\.weight' is \(7,\) in the checkpoint and \(32,\) in the model"):
        load(folder)


@rehearses
def test_another_shape_is_said_before_anything_is_fetched(tmp_path, streams):
    folder = saved("llama", tmp_path / "model")
    change_config(folder, vocab_size=65)
    with pytest.raises(ValueError, match=r"\(64, 32\) in the checkpoint and \(65, 32\)"):
        load(folder)
    assert streams.asked == []


@rehearses
def test_the_wrong_class_of_model_is_a_key_error(tmp_path, streams):
    folder = saved("bert-base", tmp_path / "model")
    with pytest.raises(KeyError, match="model_class"):
        load(folder, model_class=transformers.AutoModelForTokenClassification)
    assert streams.asked == []


@rehearses
def test_what_the_model_does_not_have_is_not_fetched_and_warned_of(tmp_path, streams):
    folder = saved("llama", tmp_path / "model")
    rewrite(folder, lambda tensors: {**tensors, "model.layers.0.extra.weight": torch.ones(3)})
    lines: list[str] = []
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    logger.addHandler(listener)
    try:
        load(folder)
    finally:
        logger.removeHandler(listener)
    (report,) = [line for line in lines if "model.layers.0.extra.weight" in line]
    assert f"from: {folder}" in report
    (asked,) = streams.asked
    assert "model.layers.0.extra.weight" not in asked and "model.norm.weight" in asked


def test_a_missing_shard_is_not_found(tmp_path):
    folder = saved("llama-sharded-bf16", tmp_path / "model")
    sorted(folder.glob("*.safetensors"))[1].unlink()
    with pytest.raises(headrace.NotFoundError):
        load(folder)


def test_a_broken_index_is_an_error_and_nothing_else_is_taken_instead(tmp_path):
    folder = saved("llama-sharded-bf16", tmp_path / "model")
    (folder / "model.safetensors.index.json").write_text("{")
    with pytest.raises(ValueError, match="index"):
        load(folder)


def test_an_index_that_places_a_tensor_wrongly_is_an_error(tmp_path):
    folder = saved("llama-named-index", tmp_path / "model")
    index = json.loads((folder / "mine.safetensors.index.json").read_text())
    index["weight_map"]["model.norm.weight"] = "model.safetensors"
    index["weight_map"]["no.such"] = "model.safetensors"
    (folder / "mine.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(headrace.InvalidSafetensorsError, match=r"no\.such"):
        load(folder)


@pytest.mark.parametrize("weights", ["../model.safetensors", "/etc/passwd", "a/../../b.safetensors", "model.bin"])
def test_weights_outside_of_the_folder_or_in_another_format_are_refused(tmp_path, weights):
    folder = saved("llama", tmp_path / "model")
    change_config(folder, transformers_weights=weights)
    with pytest.raises(ValueError):
        load(folder)


def test_a_folder_without_weights_is_not_found(tmp_path):
    folder = saved("llama", tmp_path / "model")
    (folder / "model.safetensors").unlink()
    with pytest.raises(headrace.NotFoundError):
        load(folder)


def test_a_folder_without_config_is_the_error_of_transformers(tmp_path, temporary):
    folder = saved("llama", tmp_path / "model")
    (folder / "config.json").unlink()
    with pytest.raises((OSError, ValueError), match="config"):
        load(folder)
    assert list(temporary.glob("headrace-*")) == []


def test_a_single_file_is_no_model(tmp_path):
    folder = saved("llama", tmp_path / "model")
    with pytest.raises(headrace.InvalidRequestError, match="folder"):
        load(folder / "model.safetensors")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_default_device_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(headrace.UnsupportedError, match="device='cpu'"):
        asyncio.run(headrace.load_hf_model(tmp_path))


@pytest.mark.parametrize("options", [
    {"include": "a"}, {"tensors": ["a"]}, {"model_options": {"state_dict": {}}}, {"no_such_option": 1},
])  # fmt: skip
def test_options_that_make_no_sense_are_type_errors(tmp_path, options):
    with pytest.raises(TypeError):
        load(tmp_path, **options)


def test_an_error_of_the_stream_is_raised_as_it_is(tmp_path, streams):
    folder = saved("llama", tmp_path / "model")
    streams.script = {"held": "model.layers.1.mlp.up_proj.weight", "error": headrace.TruncatedError("cut")}
    loading, outcome = in_thread(lambda: load(folder))
    wait_until(lambda: bool(streams.scripted) and streams.scripted[0].waiting.is_set())
    streams.scripted[0].release()
    loading.join(30)
    assert isinstance(outcome[0], headrace.TruncatedError)
    assert streams.scripted[0].closed.is_set()
    streams.script = None
    load(folder)


# --- What holds meanwhile ---


def in_thread(act: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Runs it elsewhere; the list gets what it returned or raised."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(act())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def loaders() -> list[str]:
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith(("headrace-load", "ThreadPoolExecutor"))
    ]


def test_the_event_loop_runs_while_the_weights_are_waited_for(tmp_path, streams):
    folder = saved("llama", tmp_path / "model")
    streams.script = {"held": "model.norm.weight"}

    async def main() -> None:
        loading = asyncio.create_task(headrace.load_hf_model(folder, device="cpu"))
        while not (streams.scripted and streams.scripted[0].waiting.is_set()):
            await asyncio.sleep(0.01)
        assert not loading.done()
        streams.scripted[0].release()
        await loading

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_cancelled_task_ends_its_stream_and_its_threads_and_lets_the_next_one_load(tmp_path, streams, temporary):
    folder = saved("llama", tmp_path / "model")
    streams.script = {"held": "model.norm.weight"}

    async def main() -> None:
        loading = asyncio.create_task(headrace.load_hf_model(folder, device="cpu"))
        while not (streams.scripted and streams.scripted[0].waiting.is_set()):
            await asyncio.sleep(0.01)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        assert streams.scripted[0].closed.is_set()
        assert list(temporary.glob("headrace-*")) == []
        streams.script = None
        await headrace.load_hf_model(folder, device="cpu")

    asyncio.run(asyncio.wait_for(main(), 60))
    wait_until(lambda: not loaders(), f"threads are left: {loaders()}")


def test_a_task_that_is_cancelled_while_another_loads_does_not_wait_for_it(tmp_path, streams):
    folder = saved("llama", tmp_path / "model")
    streams.script = {"held": "model.norm.weight"}

    async def main() -> None:
        first = asyncio.create_task(headrace.load_hf_model(folder, device="cpu"))
        while not (streams.scripted and streams.scripted[0].waiting.is_set()):
            await asyncio.sleep(0.01)
        second = asyncio.create_task(headrace.load_hf_model(folder, device="cpu"))
        while len(loaders()) < 2 + 4:  # the second's thread is there, beside the first's and its workers
            if sum(name.startswith("headrace-load") for name in loaders()) >= 2:
                break
            await asyncio.sleep(0.01)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert not first.done() and len(streams.scripted) == 1
        streams.scripted[0].release()
        await first

    asyncio.run(asyncio.wait_for(main(), 60))


def test_many_loadings_at_once_in_one_loop_and_in_threads_are_all_right(tmp_path):
    names = ["llama-cast", "bert", "mixtral", "t5-fp16"]
    folders = {name: saved(name, tmp_path / name) for name in names}
    wanted = {name: BY_NAME[name].loader().from_pretrained(folders[name], **BY_NAME[name].options) for name in names}
    found: dict[str, Any] = {}

    async def each(name: str) -> None:
        options = {"model_class": BY_NAME[name].loader(), **BY_NAME[name].options}
        found[name], _ = await headrace.load_hf_model(folders[name], device="cpu", **options)

    async def both(chosen: list[str]) -> None:
        await asyncio.gather(*(each(name) for name in chosen))

    threads = [in_thread(lambda chosen=chosen: asyncio.run(both(chosen))) for chosen in (names[:2], names[2:])]
    for thread, outcome in threads:
        thread.join(120)
        assert outcome == [None]
    for name in names:
        assert_same_model(found[name], wanted[name])
    assert torch.get_default_dtype() == torch.float32


def test_tensors_are_asked_for_in_the_order_in_which_they_are_taken(tmp_path, streams, monkeypatch):
    most: list[int] = []
    original = Feed._lay_aside

    def lay_aside(self: Any, name: str, tensor: Any) -> None:
        original(self, name, tensor)
        most.append(len(self._aside))

    monkeypatch.setattr(Feed, "_lay_aside", lay_aside)
    load(saved("mixtral-sharded", tmp_path / "model"))
    assert len(streams.asked) == 1, "something was fetched twice"
    assert max(most, default=0) <= 4, "what is laid aside must not grow"


def test_what_arrives_is_let_go_once_it_has_been_cast(tmp_path, streams, monkeypatch):
    folder = tmp_path / "model"
    BY_NAME["llama"]._replace(config=lambda: transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": 12})).save(
        folder
    )
    alive: set[str] = set()
    most: list[int] = []
    original = Promise.__getitem__

    def seen(self: Any, index: Any) -> Any:
        tensor = original(self, index)
        alive.add(self.name)
        weakref.finalize(tensor, alive.discard, self.name)
        most.append(len(alive))
        return tensor

    monkeypatch.setattr(Promise, "__getitem__", seen)
    load(folder, dtype=torch.bfloat16)
    assert len(most) > 100
    assert max(most) <= 12, "tensors are kept in both dtypes"


@rehearses
def test_without_workers_the_order_is_that_of_the_conversions(tmp_path, streams, monkeypatch):
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")
    aside: list[str] = []
    original = Feed._lay_aside
    monkeypatch.setattr(
        Feed,
        "_lay_aside",
        lambda self, name, tensor: (aside.append(name), original(self, name, tensor)),
    )
    folder = saved("mixtral-sharded", tmp_path / "model")
    found = load(folder)
    assert aside == []
    assert len(streams.asked) == 1
    assert_same_model(found, transformers.AutoModelForCausalLM.from_pretrained(folder))


def test_loading_leaves_transformers_and_torch_as_they_were(tmp_path):
    folder = saved("qwen3-moe", tmp_path / "model")
    loading = transformers.modeling_utils
    kept = {name: getattr(loading, name) for name in dir(loading) if callable(getattr(loading, name))}
    filters = list(logging.getLogger("transformers.modeling_utils").filters)
    state = torch.random.get_rng_state()
    bars = transformers.utils.logging.is_progress_bar_enabled()
    load(folder, dtype="bfloat16")
    assert {name: getattr(loading, name) for name in kept} == kept
    assert logging.getLogger("transformers.modeling_utils").filters == filters
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.random.get_rng_state(), state)
    assert transformers.utils.logging.is_progress_bar_enabled() == bars


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_during_a_loading_can_load(tmp_path, streams):
    folder = saved("llama", tmp_path / "model")
    streams.script = {"held": "model.norm.weight"}
    loading, _ = in_thread(lambda: load(folder))
    wait_until(lambda: bool(streams.scripted) and streams.scripted[0].waiting.is_set())
    held = _transformers._turn
    child = os.fork()
    if child == 0:
        os._exit(0 if _transformers._turn is not held and not _transformers._turn._taken else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert held._taken
    streams.scripted[0].release()
    loading.join(30)
    assert not held._taken


# --- Where it goes, and what comes along ---


def without_accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("transformers.utils", "transformers.integrations.accelerate"):
        monkeypatch.setattr(f"{module}.is_accelerate_available", lambda *_, **__: False)


@rehearses
def test_a_device_needs_no_accelerate_in_the_thread_that_loads_and_does_in_others(tmp_path, monkeypatch):
    without_accelerate(monkeypatch)
    folder = saved("llama", tmp_path / "model")
    device = torch.device("meta")
    with _transformers._placing(transformers, device) as placing:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, **placing)
        assert {parameter.device for parameter in model.parameters()} == {device}
        assert {buffer.device for buffer in model.buffers()} == {device}
        thread, outcome = in_thread(lambda: transformers.AutoModelForCausalLM.from_pretrained(folder, **placing))
        thread.join(60)
        assert "accelerate" in str(outcome[0])
        with pytest.raises(ValueError, match="accelerate"):
            transformers.AutoModelForCausalLM.from_pretrained(folder, device_map={"": "cpu"})
    with pytest.raises(ValueError, match="accelerate"):
        transformers.AutoModelForCausalLM.from_pretrained(folder, **placing)


def test_a_transformers_that_cannot_place_without_accelerate_says_so(monkeypatch):
    monkeypatch.setattr("transformers.utils.is_accelerate_available", lambda *_, **__: False)
    monkeypatch.delattr("transformers.modeling_utils.check_and_set_device_map", raising=False)
    with pytest.raises(ImportError, match="pip install accelerate"):
        with _transformers._placing(transformers, torch.device("cuda:0")):
            pass


def test_host_memory_is_placed_without_a_device_map():
    with _transformers._placing(transformers, torch.device("cpu")) as placing:
        assert placing == {}


def test_a_gpu_without_number_is_that_of_the_launcher(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert _transformers._device("cuda") == torch.device("cuda:1")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert _transformers._device("cuda") == torch.device("cuda:3")
    assert _transformers._device("cuda:2") == torch.device("cuda:2")


def test_small_files_go_where_they_were_asked_to_and_weights_do_not(tmp_path):
    folder = saved("llama", tmp_path / "model")
    (folder / "pytorch_model.bin").write_bytes(b"weights")
    (folder / "chat_template.jinja").write_text("{{ messages }}")

    async def main() -> tuple[Any, Path]:
        return await headrace.load_hf_model(folder, device="cpu", local_dir=tmp_path / "small")

    model, local = asyncio.run(main())
    assert local == tmp_path / "small"
    assert {file.name for file in local.iterdir()} == {"config.json", "generation_config.json", "chat_template.jinja"}
    assert model.config.name_or_path == model.name_or_path == str(local)


def test_options_of_from_pretrained_are_handed_on(tmp_path):
    folder = saved("bert-base", tmp_path / "model")
    model = load(
        folder,
        model_class=transformers.AutoModel,
        model_options={"attn_implementation": "eager", "layer_norm_eps": 0.5},
    )
    assert model.config._attn_implementation == "eager"
    assert model.config.layer_norm_eps == 0.5


CODE = """
import torch
from transformers import PretrainedConfig, PreTrainedModel

class OwnConfig(PretrainedConfig):
    model_type = "own"

    def __init__(self, width=8, **more):
        self.width = width
        super().__init__(**more)

class OwnModel(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.rates = RATES
        self.inner = torch.nn.Linear(config.width, config.width)
        self.post_init()
"""


def test_code_that_comes_with_the_model_runs_where_it_is_trusted_and_only_there(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "own"
    folder.mkdir()
    # Since 5.0 transformers sees to it that such code can be built without memory.
    rates = "[rate.item() for rate in torch.linspace(0, 1, 3)]" if MAJOR >= 5 else "[0.0, 0.5, 1.0]"
    (folder / "own.py").write_text(CODE.replace("RATES", rates))
    config = {"model_type": "own", "width": 8, "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}}
    (folder / "config.json").write_text(json.dumps(config))
    weights = {"inner.weight": torch.randn(8, 8), "inner.bias": torch.randn(8)}
    from safetensors.torch import save_file

    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="trust_remote_code"):
        load(folder, model_class=transformers.AutoModel)
    model = load(folder, model_class=transformers.AutoModel, trust_remote_code=True)
    assert type(model).__name__ == "OwnModel" and model.rates == [0.0, 0.5, 1.0]
    assert torch.equal(model.inner.weight, weights["inner.weight"]) and torch.equal(
        model.inner.bias, weights["inner.bias"]
    )


def test_samples_have_names_of_their_own():
    assert len(BY_NAME) == len(SAMPLES) >= 40
    assert all(isinstance(sample, Sample) for sample in SAMPLES)
