"""vLLM: the load format `headrace`, which streams an engine's weights from where they are stored.

Every process of vLLM calls `register` by itself, through the entry point `vllm.general_plugins`. So
nothing has to be imported or set; an engine is told to use it by three arguments, which
`engine_args` gives:

    from vllm import LLM
    from headrace.vllm import engine_args

    llm = LLM(**engine_args("s3://bucket/qwen2.5-7b"), max_model_len=4096)

and on a command line, where `python -m headrace.vllm` fetches the configuration and prints the
three:

    vllm serve $(python -m headrace.vllm s3://bucket/qwen2.5-7b) --max-model-len 4096

Importing this module imports neither vLLM nor torch.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import importlib.util
import json
import logging
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Coroutine, Generator, Mapping
from typing import Any

LOAD_FORMAT = "headrace"
"""What vLLM's `load_format` is to be."""

OPTIONS = (
    "chunk_size",
    "max_concurrency",
    "memory_limit",
    "threads",
    "revision",
    "storage_options",
)
"""What `model_loader_extra_config` may hold beside `uri` and `device`: arguments of
`ModelStreamer`."""

# vLLM writes its arguments to its log. Of `storage_options`, only these hold no secret.
_LOGGABLE = frozenset(
    (
        "endpoint", "region", "path_style", "anonymous", "profile", "requester_pays", "account",
        "ca_file", "certificate_file", "key_file", "verify_tls",
    )
)  # fmt: skip


class EngineArguments(dict[str, Any]):
    """Keyword arguments of `vllm.LLM` and `vllm.EngineArgs`.

    Awaiting them gives them, so that `await engine_args(…)` works as well.
    """

    def __await__(self) -> Generator[None, None, EngineArguments]:
        return self
        yield  # makes this a generator, which never gets here


def engine_args(
    path: str | os.PathLike[str],
    *,
    local_dir: str | os.PathLike[str] | None = None,
    chunk_size: int | str | None = None,
    max_concurrency: int | None = None,
    memory_limit: int | str | None = None,
    threads: int | None = None,
    revision: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> EngineArguments:
    """Fetches a model's configuration and gives the arguments that make vLLM stream its weights
    from `path`.

    `path` is whatever `ModelStreamer` reads: `s3://`, `gs://`, `az://`, `hf://`, `http(s)://`, a
    folder. What lies there beside the weights (configuration, tokenizer, generation settings) goes
    to `local_dir`, a fresh temporary folder by default, which stays until somebody removes it:
    vLLM's processes read it when they like. Of a local folder nothing is copied unless `local_dir`
    is given.

    `chunk_size`, `max_concurrency`, `memory_limit`, `threads`, `revision` and `storage_options` are
    those of `ModelStreamer`, for the configuration here and for the weights in each worker; what is
    None stays at its default there. `device` is where tensors arrive before vLLM places them: host
    memory by default, which with tensor parallelism moves to each GPU no more than its share;
    `"cuda"`, the worker's own GPU, takes `memory_limit` bytes of it while loading.

    Returns `model`, `load_format` and `model_loader_extra_config`. Add any other argument of the
    engine to them.

    Raises what `ModelStreamer.download_metadata` does, before any engine starts. ValueError:
    `storage_options` with a secret, since vLLM logs its arguments; workers inherit the environment,
    where credentials belong.

    Blocks its caller until the configuration is there, also where a loop runs; on a loop that
    serves others, use `await asyncio.to_thread(engine_args, path)`.

        llm = LLM(**engine_args("hf://Qwen/Qwen2.5-7B-Instruct"), tensor_parallel_size=2)
    """
    given = {
        "chunk_size": chunk_size,
        "max_concurrency": max_concurrency,
        "memory_limit": memory_limit,
        "threads": threads,
        "revision": revision,
        "storage_options": None if storage_options is None else dict(storage_options),
    }
    options = {name: value for name, value in given.items() if value is not None}
    refuse_secrets(options)
    uri = os.fspath(path)
    folder = _local_folder(uri)
    if folder is not None:
        uri = str(folder)
    model = (
        uri
        if folder is not None and local_dir is None
        else _download_metadata(uri, local_dir, options)
    )
    extra: dict[str, Any] = {"uri": uri, **options}
    if device is not None:
        extra["device"] = device
    return EngineArguments(model=model, load_format=LOAD_FORMAT, model_loader_extra_config=extra)


def register() -> None:
    """Makes the load format `headrace` known to vLLM. Called by vLLM itself, in each of its
    processes.

    May be called more than once. Does nothing without vLLM, and warns where vLLM's loaders are not
    what they were: other load formats must go on working. Needs no GPU.
    """
    if importlib.util.find_spec("vllm") is None:
        return
    try:
        from vllm.model_executor.model_loader import register_model_loader

        from headrace._vllm_loader import HeadraceModelLoader, is_registered
    except ImportError as error:
        logging.getLogger(__name__).warning(
            "load format %s is not there, as this vLLM is too old or too new for it: %s",
            LOAD_FORMAT,
            error,
        )
        return
    if not is_registered(LOAD_FORMAT):
        register_model_loader(LOAD_FORMAT)(HeadraceModelLoader)


def refuse_secrets(options: Mapping[str, Any]) -> None:
    """Raises ValueError, which names the option and never its value, where `storage_options` may
    hold a secret."""
    storage = options.get("storage_options") or {}
    if not isinstance(storage, Mapping):
        raise ValueError(
            "storage_options: a mapping of names to values is needed, "
            f"not a {type(storage).__name__}"
        )
    secret = sorted(str(name) for name in storage if name not in _LOGGABLE)
    if secret:
        raise ValueError(
            f"storage_options: {', '.join(secret)} cannot go through vLLM's arguments, which vLLM "
            "writes to its log. Put credentials into the environment, which vLLM's workers "
            "inherit: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, "
            "GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_CONNECTION_STRING, HF_TOKEN"
        )


def _local_folder(uri: str) -> pathlib.Path | None:
    """The folder that `uri` names, None where it is no local folder."""
    path = pathlib.Path(uri)
    return path.absolute() if "://" not in uri and path.is_dir() else None


def _download_metadata(
    uri: str, local_dir: str | os.PathLike[str] | None, options: dict[str, Any]
) -> str:
    from headrace import ModelStreamer

    streamer = ModelStreamer(uri, **options)
    if local_dir is not None:
        return _wait_for(streamer.download_metadata(local_dir))
    folder = tempfile.mkdtemp(prefix="headrace-model-")
    try:
        return _wait_for(streamer.download_metadata(folder))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _wait_for(download: Coroutine[Any, Any, pathlib.Path]) -> str:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return str(asyncio.run(download))
    # The caller's thread has a loop already, and a second one cannot run there.
    with concurrent.futures.ThreadPoolExecutor(1) as other_thread:
        return str(other_thread.submit(asyncio.run, download).result())


def _main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.vllm",
        description="Fetches a model's configuration and prints the arguments with which "
        "`vllm serve` streams its weights: "
        "vllm serve $(python -m headrace.vllm s3://bucket/model)",
    )
    parser.add_argument(
        "uri",
        help="where the model is: s3://bucket/model, hf://org/model, https://host/model, a folder",
    )
    parser.add_argument(
        "--local-dir",
        metavar="FOLDER",
        help="where its configuration goes (default: a temporary folder)",
    )
    parser.add_argument("--chunk-size", metavar="SIZE", help="the largest range of one request")
    parser.add_argument(
        "--max-concurrency", metavar="N", type=int, help="the most requests at once"
    )
    parser.add_argument(
        "--memory-limit", metavar="SIZE", help="the most host memory that a stream takes"
    )
    parser.add_argument("--threads", metavar="N", type=int, help="threads that receive")
    parser.add_argument(
        "--revision", metavar="NAME", help="a branch, tag or commit of an hf:// model"
    )
    parser.add_argument(
        "--device",
        metavar="DEVICE",
        help="where tensors arrive before vLLM places them (default: host memory)",
    )
    given = vars(parser.parse_args(arguments))
    try:
        chosen = engine_args(given.pop("uri"), **given)
    except Exception as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    # Without spaces: the shell splits the words of a substitution, and takes no quotes out of them.
    extra = json.dumps(chosen["model_loader_extra_config"], separators=(",", ":"))
    words = [
        chosen["model"],
        "--load-format",
        chosen["load_format"],
        "--model-loader-extra-config",
        extra,
    ]
    if any(character.isspace() for word in words for character in word):
        print(
            "headrace: a name with spaces cannot be printed for a shell: "
            "give vLLM the arguments yourself",
            file=sys.stderr,
        )
        return 1
    print(*words)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
