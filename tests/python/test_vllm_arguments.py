"""What `headrace.vllm` does without vLLM: the arguments of an engine, and nothing at all."""

import asyncio
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import checkpoints
import pytest
from nginx import Nginx

from headrace.vllm import LOAD_FORMAT, engine_args


@pytest.fixture
def model(tmp_path) -> Path:
    """A folder with a configuration beside the weights."""
    folder = checkpoints.write_single(
        tmp_path / "model", [checkpoints.tensor("weight", "F32", [8])], {"format": "pt"}
    )
    (folder / "config.json").write_text("{}")
    (folder / "nested").mkdir()
    (folder / "nested" / "vocab.txt").write_text("a")
    return folder


def run_python(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """A process that finds the package that this one has."""
    import headrace

    environment = {**os.environ, "PYTHONPATH": str(Path(headrace.__file__).parents[1])}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=check)


def test_engine_args_can_be_awaited(model):
    async def ask():
        return await engine_args(model)

    assert asyncio.run(ask()) == engine_args(model)


def test_engine_args_copy_everything_but_weights_where_a_folder_is_given(model, tmp_path):
    arguments = engine_args(model, local_dir=tmp_path / "copy", max_concurrency=4)
    assert arguments == {
        "model": str(tmp_path / "copy"),
        "load_format": LOAD_FORMAT,
        "model_loader_extra_config": {"uri": str(model), "max_concurrency": 4},
    }
    copied = {str(file.relative_to(tmp_path / "copy")) for file in (tmp_path / "copy").rglob("*.*")}
    assert copied == {"config.json", "nested/vocab.txt"}


def test_engine_args_take_a_local_folder_as_it_is(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert engine_args("model", memory_limit="64MiB", device="cuda") == {
        "model": str(model),
        "load_format": LOAD_FORMAT,
        "model_loader_extra_config": {
            "uri": str(model),
            "memory_limit": "64MiB",
            "device": "cuda",
        },
    }


def test_engine_args_fetch_the_configuration_from_a_server(model, tmp_path):
    with Nginx(model) as server:
        arguments = engine_args(server.url, local_dir=tmp_path / "copy")
    assert arguments["model_loader_extra_config"] == {"uri": server.url}
    assert [file.name for file in (tmp_path / "copy").iterdir()] == ["config.json"]


def test_engine_args_work_on_a_running_loop(model, tmp_path):
    async def ask():
        return engine_args(model, local_dir=tmp_path / "copy")

    assert (Path(asyncio.run(ask())["model"]) / "config.json").is_file()


def test_engine_args_of_a_place_that_is_not_there_raise_and_leave_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(FileNotFoundError):
        engine_args(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_engine_args_refuse_secrets_which_vllm_would_log():
    with pytest.raises(ValueError, match="AWS_ACCESS_KEY_ID") as failure:
        engine_args("s3://bucket/model", storage_options={"token": "hunter2"})
    assert "hunter2" not in str(failure.value)


def test_registering_without_vllm_does_nothing():
    code = """
import importlib.util, sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "vllm" else find_spec(name, *more)
from headrace.vllm import register
register()
assert "torch" not in sys.modules
"""
    run_python("-c", code)


def test_the_command_prints_words_that_a_shell_passes_on(model):
    printed = run_python("-m", "headrace.vllm", str(model), "--memory-limit", "64MiB").stdout
    through_a_shell = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' $(printf %s {shlex.quote(printed)})"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    folder, load_format_flag, load_format, extra_flag, extra = through_a_shell
    assert [folder, load_format_flag, load_format, extra_flag] == [
        str(model), "--load-format", "headrace", "--model-loader-extra-config",
    ]  # fmt: skip
    assert json.loads(extra) == {"uri": str(model), "memory_limit": "64MiB"}


def test_the_command_says_what_is_wrong_in_one_line(tmp_path):
    finished = run_python("-m", "headrace.vllm", str(tmp_path / "nowhere"), check=False)
    assert finished.returncode == 1
    assert finished.stdout == ""
    assert len(finished.stderr.splitlines()) == 1 and "nowhere" in finished.stderr


def test_headrace_alone_imports_no_vllm():
    code = """
import sys, headrace, headrace.vllm
assert not {"vllm", "torch", "numpy"} & set(sys.modules)
"""
    run_python("-c", code)
