"""vLLM with the load format `headrace`: the real engine, on a processor. `./run test-vllm` runs
this, in an environment of its own; it is no part of `./run test`."""

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip(
    "vllm", reason="vLLM is not installed here: ./run test-vllm makes an environment that has it"
)

import torch
from child_process import ChildProcess, free_ports
from safetensors.torch import save_file
from tiny_models import CONFIGURATIONS, make_model
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from headrace.vllm import LOAD_FORMAT, engine_args, register

HERE = Path(__file__).parent
RUN_LIMIT_SECONDS = 400


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    """A folder for each kind of model; qwen2's weights are in several files with an index."""
    root = tmp_path_factory.mktemp("models")
    return {
        kind: make_model(kind, root / kind, shard_size="300KB" if kind == "qwen2" else "10GB")
        for kind in CONFIGURATIONS
    }


@pytest.fixture(scope="module")
def defaults() -> dict[str, list]:
    """What the default loader's engine answers for each kind of model, as far as a test has asked:
    see `default_answer`."""
    return {}


def default_answer(defaults: dict[str, list], models: dict[str, Path], kind: str) -> list:
    if kind not in defaults:
        [defaults[kind]] = generate({"model": str(models[kind])})
    return defaults[kind]


def environment(**changes: str) -> dict[str, str]:
    """In one process, and with no access to the Hub."""
    usual = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
    }
    return {**os.environ, **usual, **changes}


def generate(*engines: dict, **changes: str) -> list:
    """What each engine, made by these arguments, answers to the prompts of generate.py: tokens and
    their logarithmic probabilities."""
    finished = subprocess.run(
        [sys.executable, str(HERE / "generate.py"), json.dumps(engines)],
        env=environment(**changes),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_SECONDS,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-4000:]
    return json.loads(finished.stdout.splitlines()[-1])


@contextlib.contextmanager
def aws_environment(server):
    """This process's environment, and so that of its children, leads to the server."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, value)
        yield


# ---- The engine ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_every_source_gives_the_tokens_of_the_default_loader(
    kind, models, defaults, nginx, seaweedfs, tmp_path
):
    folder = models[kind]
    for file in folder.iterdir():
        (nginx.root / file.name).write_bytes(file.read_bytes())
    bucket = f"vllm-{kind}"
    seaweedfs.client().create_bucket(bucket)
    seaweedfs.client().put_folder(bucket, "models/tiny", folder)

    with aws_environment(seaweedfs):
        over_http = engine_args(nginx.url, local_dir=tmp_path / "http")
        from_s3 = engine_args(
            f"s3://{bucket}/models/tiny", local_dir=tmp_path / "s3", memory_limit=256 << 20
        )
        default, local, http, s3 = generate(
            {"model": str(folder)},
            engine_args(folder),
            over_http,
            from_s3,
        )

    defaults[kind] = default
    assert not list(tmp_path.glob("s3/**/*.safetensors")) + list(
        tmp_path.glob("http/**/*.safetensors")
    )
    assert len({token for tokens, _ in default for token in tokens}) > 5
    assert local == default
    assert http == default
    assert s3 == default


def test_weights_come_from_the_uri_and_not_from_the_folder_of_the_configuration(models, tmp_path):
    other = make_model("llama", tmp_path / "other", seed=1)
    streamed = {"load_format": LOAD_FORMAT, "model_loader_extra_config": {"uri": str(other)}}
    first, second, mixed = generate(
        {"model": str(models["llama"])},
        {"model": str(other)},
        {"model": str(models["llama"]), **streamed},
    )
    assert first != second
    assert mixed == second


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_engine_in_a_process_of_its_own_streams_as_well(
    method, models, defaults, seaweedfs, tmp_path
):
    seaweedfs.client().create_bucket("vllm-processes")
    seaweedfs.client().put_folder("vllm-processes", method, models["qwen2"])
    with aws_environment(seaweedfs):
        arguments = engine_args(f"s3://vllm-processes/{method}", local_dir=tmp_path / method)
        default = default_answer(defaults, models, "qwen2")
        # The parent has streamed before its engine is forked.
        changes = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_WORKER_MULTIPROC_METHOD": method}
        [streamed] = generate(arguments, HEADRACE_TEST_STREAM_FIRST="1", **changes)
    assert streamed == default


def test_vllm_serve_takes_the_uri_on_its_command_line(models, defaults, seaweedfs, tmp_path):
    seaweedfs.client().create_bucket("vllm-serve")
    seaweedfs.client().put_folder("vllm-serve", "tiny", models["llama"])
    expected = default_answer(defaults, models, "llama")
    with aws_environment(seaweedfs):
        words = subprocess.run(
            [
                sys.executable,
                "-m",
                "headrace.vllm",
                "s3://vllm-serve/tiny",
                "--local-dir",
                str(tmp_path / "local"),
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        (port,) = free_ports(1)
        command = [
            sys.executable, HERE / "serve.py", "serve", *words,
            "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny",
            "--dtype", "float32", "--enforce-eager", "--max-model-len", "64", "--max-num-seqs", "4",
            "--kv-cache-memory-bytes", str(64 << 20),
        ]  # fmt: skip
        server = ChildProcess(
            command, log=tmp_path / "serve.log", env=environment(VLLM_ENABLE_V1_MULTIPROCESSING="1")
        )
        try:
            server.wait_until(lambda: _is_healthy(port), limit=RUN_LIMIT_SECONDS)
            question = {
                "model": "tiny",
                "prompt": [3, 14, 15, 92, 65],
                "temperature": 0,
                "max_tokens": 12,
                "ignore_eos": True,
                "return_token_ids": True,
            }
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/completions",
                json.dumps(question).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as response:
                answer = json.load(response)
        finally:
            server.stop(limit=30)
    assert answer["choices"][0]["token_ids"] == expected[0][0]


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


def test_a_stream_that_fails_fails_the_engine_with_the_words_of_headrace(models, nginx):
    arguments = {"model": str(models["llama"]), "load_format": LOAD_FORMAT}
    with pytest.raises(AssertionError, match=r"missing-model|404"):
        generate({**arguments, "model_loader_extra_config": {"uri": f"{nginx.url}/missing-model"}})


# ---- The loader ----------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    tensors = {
        f"layers.0.experts.{number}.up_proj.weight": torch.full((4, 4), float(number))
        for number in range(4)
    }
    save_file(
        {**tensors, "norm.weight": torch.ones(4), "mtp.weight": torch.ones(2)},
        folder / "model.safetensors",
    )
    return folder


def make_loader(**extra):
    register()
    from vllm.model_executor.model_loader import get_model_loader

    return get_model_loader(LoadConfig(load_format=LOAD_FORMAT, model_loader_extra_config=extra))


def model_config(model: Path | str, **changes) -> SimpleNamespace:
    return SimpleNamespace(
        **{"model": str(model), "revision": None, "model_weights": "", **changes}
    )


def names(loader, config, model=None) -> list[str]:
    return sorted(name for name, _ in loader.get_all_weights(config, model or SimpleNamespace()))


def test_tensors_are_those_of_the_files(checkpoint):
    loader = make_loader(uri=str(checkpoint), enable_weights_track=True)
    streamed = dict(loader.get_all_weights(model_config("configuration-alone"), SimpleNamespace()))
    assert loader.enable_weights_track is True
    assert loader.counter_before_loading_weights > 0
    assert len(streamed) == 6
    assert torch.equal(streamed["layers.0.experts.3.up_proj.weight"], torch.full((4, 4), 3.0))
    assert all(tensor.device.type == "cpu" for tensor in streamed.values())


def test_tensors_arrive_in_host_memory_whatever_the_default_device_is(checkpoint):
    loader = make_loader(uri=str(checkpoint))
    with torch.device("meta"):
        streamed = dict(
            loader.get_all_weights(model_config("configuration-alone"), SimpleNamespace())
        )
    assert {tensor.device.type for tensor in streamed.values()} == {"cpu"}


def test_secondary_weights_are_loaded_the_default_way(checkpoint, tmp_path):
    second = tmp_path / "second"
    second.mkdir()
    save_file({"linear.weight": torch.zeros(3)}, second / "model.safetensors")
    source = DefaultModelLoader.Source(model_or_path=str(second), revision=None, prefix="head.")
    loader = make_loader(uri=str(checkpoint))
    found = names(
        loader, model_config("configuration-alone"), SimpleNamespace(secondary_weights=[source])
    )
    assert "head.linear.weight" in found
    assert len(found) == 7


def test_without_a_uri_the_folder_of_the_model_is_streamed(checkpoint):
    assert len(names(make_loader(), model_config(checkpoint))) == 6


def test_without_a_uri_a_repository_of_the_hub_is_streamed_at_its_revision(monkeypatch):
    opened = capture_streamers(monkeypatch)
    names(make_loader(max_concurrency=3), model_config("org/name", revision="abc"))
    assert opened == [("hf://org/name@abc", {"max_concurrency": 3, "progress": True})]


def test_options_reach_the_streamer(monkeypatch):
    opened = capture_streamers(monkeypatch)
    options = {
        "chunk_size": 1 << 20,
        "memory_limit": 64 << 20,
        "storage_options": {"endpoint": "http://127.0.0.1:1"},
    }
    names(make_loader(uri="s3://bucket/model", **options), model_config("configuration-alone"))
    assert opened == [("s3://bucket/model", {**options, "progress": True})]


def capture_streamers(monkeypatch) -> list:
    """Has the loader use a streamer without tensors, and gives the list of what such streamers were
    made with."""
    import headrace._vllm_loader as module

    opened = []

    class Streamer:
        def __init__(self, path, **options):
            opened.append((path, options))

        def stream_sync(self, **_):
            return iter(())

    monkeypatch.setattr(module, "ModelStreamer", Streamer)
    return opened


def test_experts_of_other_processes_are_not_fetched(checkpoint):
    loader = make_loader(uri=str(checkpoint))
    loader.local_expert_ids = {1}
    found = names(loader, model_config("configuration-alone"))
    assert found == ["layers.0.experts.1.up_proj.weight", "mtp.weight", "norm.weight"]


def test_weights_that_the_model_does_not_use_are_not_fetched(checkpoint):
    model = SimpleNamespace(is_unused_checkpoint_weight=lambda name: not name.startswith("mtp."))
    assert names(make_loader(uri=str(checkpoint)), model_config("configuration-alone"), model) == [
        "mtp.weight"
    ]


def test_a_model_of_other_files_is_refused_and_told_what_to_do(checkpoint):
    model = SimpleNamespace(allow_patterns_overrides=["transformer/*.safetensors"])
    with pytest.raises(ValueError, match="--load-format auto"):
        names(make_loader(uri=str(checkpoint)), model_config("configuration-alone"), model)


def test_torchao_checkpoints_are_refused_and_told_what_to_do(checkpoint):
    loader = make_loader(uri=str(checkpoint))
    loader.load_config.safetensors_load_strategy = "torchao"
    with pytest.raises(ValueError, match="--load-format auto"):
        names(loader, model_config("configuration-alone"))


def load_model(loader, config, *, draft=None, target=None, draft_load_config=None) -> None:
    """As far as the loader's part in loading a model goes."""
    speculative = SimpleNamespace(
        draft_model_config=draft, target_model_config=target, draft_load_config=draft_load_config
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DefaultModelLoader, "load_model", lambda *_, **__: None)
        loader.load_model(
            SimpleNamespace(speculative_config=speculative if draft else None), config
        )


def test_a_draft_model_comes_from_its_own_folder(checkpoint, tmp_path):
    draft = tmp_path / "draft"
    draft.mkdir()
    save_file({"draft.weight": torch.zeros(3)}, draft / "model.safetensors")
    loader, target_config, draft_config = (
        make_loader(uri=str(checkpoint)),
        model_config("target"),
        model_config(draft),
    )
    for config in (target_config, draft_config):
        load_model(loader, config, draft=draft_config, target=target_config)
    assert len(names(loader, target_config)) == 6
    assert names(loader, draft_config) == ["draft.weight"]


def test_how_the_uri_is_reached_says_nothing_about_a_draft_model(monkeypatch):
    opened = capture_streamers(monkeypatch)
    storage = {"endpoint": "http://127.0.0.1:1"}
    loader = make_loader(uri="s3://bucket/target", storage_options=storage, memory_limit=64 << 20)
    target_config, draft_config = model_config("target"), model_config("org/draft")
    load_model(loader, target_config, draft=draft_config, target=target_config)
    names(loader, draft_config)
    assert opened == [("hf://org/draft", {"memory_limit": 64 << 20, "progress": True})]


def test_options_that_are_null_are_left_at_their_defaults(monkeypatch):
    opened = capture_streamers(monkeypatch)
    names(make_loader(uri="s3://bucket/model", revision=None, device=None), model_config("any"))
    assert opened == [("s3://bucket/model", {"progress": True})]


def test_a_draft_with_settings_of_its_own_comes_from_its_own_uri(checkpoint, tmp_path):
    loader, draft_config = (
        make_loader(uri=str(checkpoint), memory_limit=64 << 20),
        model_config("draft-of-another"),
    )
    load_model(
        loader,
        draft_config,
        draft=draft_config,
        target=model_config("target"),
        draft_load_config=object(),
    )
    assert len(names(loader, draft_config)) == 6


def test_a_reload_from_another_folder_reads_that_folder(checkpoint, tmp_path):
    folder = tmp_path / "trained"
    folder.mkdir()
    save_file({"trained.weight": torch.zeros(3)}, folder / "model.safetensors")
    loader, config = make_loader(uri=str(checkpoint)), model_config("configuration-alone")
    load_model(loader, config)
    assert len(names(make_loader(uri=str(checkpoint)), config)) == 6
    config.model = str(folder)
    assert names(make_loader(uri=str(checkpoint)), config) == ["trained.weight"]


def test_a_loader_whose_consumer_stops_half_way_leaves_no_stream_behind(checkpoint):
    weights = make_loader(uri=str(checkpoint)).get_all_weights(
        model_config("configuration-alone"), SimpleNamespace()
    )
    next(weights)
    weights.close()
    assert len(names(make_loader(uri=str(checkpoint)), model_config("configuration-alone"))) == 6


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"uri": 3}, "s3://bucket/model"),
        ({"uri": ""}, "s3://bucket/model"),
        ({"url": "s3://bucket/model"}, "memory_limit"),
        ({"uri": "s3://bucket/model", "storage_options": {"token": "hunter2"}}, "environment"),
        ({"uri": "s3://bucket/model", "storage_options": "token"}, "mapping"),
    ],
)
def test_wrong_settings_are_errors_that_say_what_is_right(extra, message):
    with pytest.raises(ValueError, match=message) as failure:
        make_loader(**extra)
    assert "hunter2" not in str(failure.value)


# ---- Its registration ---------------------------------------------------------------------------


def test_registering_twice_is_registering_once(caplog):
    from vllm.model_executor import model_loader

    register()
    first = model_loader._LOAD_FORMAT_TO_MODEL_LOADER[LOAD_FORMAT]
    caplog.clear()
    register()
    assert model_loader._LOAD_FORMAT_TO_MODEL_LOADER[LOAD_FORMAT] is first
    assert not caplog.records


def test_the_entry_point_names_register():
    from importlib.metadata import entry_points

    [found] = entry_points(group="vllm.general_plugins", name="headrace")
    assert found.load() is register


def test_registering_with_a_vllm_of_another_shape_warns_and_does_not_fail():
    code = """
import sys
sys.modules["vllm.model_executor.model_loader"] = None
from headrace.vllm import register
register()
"""
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "load format headrace is not there" in finished.stderr
