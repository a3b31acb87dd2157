"""`load_hf_model` from real servers, and the real model that is shipped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import processes  # noqa: E402
from hf_compare import assert_same_model  # noqa: E402
from hf_models import SAMPLES  # noqa: E402
from hub_server import HubServer  # noqa: E402
from model_server import ModelServer  # noqa: E402

import headrace  # noqa: E402
from headrace._promises import Feed, natural_order  # noqa: E402

BY_NAME = {sample.name: sample for sample in SAMPLES}
STORED = ["llama-sharded-bf16", "llama-named-index", "llama-both-precisions", "llama-single-beside-index", "mixtral-sharded", "bart",
          "clip-vision-of-clip"]  # fmt: skip


def load(path: Any, **options: Any) -> Any:
    return asyncio.run(headrace.load_hf_model(path, **{"device": "cpu", **options}))[0]


@pytest.fixture(scope="module")
def bucket(request):
    try:
        server = request.getfixturevalue("seaweedfs")
    except pytest.FixtureLookupError:
        pytest.skip("without -p server_fixtures there is no S3 server")
    server.client().create_bucket("transformers")
    return server


@pytest.fixture
def reached(bucket, monkeypatch):
    """The bucket's server is where S3 is."""
    for name, value in bucket.environment().items():
        monkeypatch.setenv(name, value)
    return bucket


def check(name: str, saved: Path, uri: str) -> None:
    sample = BY_NAME[name]
    wanted = sample.loader().from_pretrained(saved, **sample.options)
    assert_same_model(load(uri, model_class=sample.loader(), **sample.options), wanted)


@pytest.mark.parametrize("name", STORED)
def test_a_bucket_gives_what_the_folder_gives(name, reached, tmp_path):
    saved = tmp_path / "saved"
    BY_NAME[name].save(saved)
    reached.client().put_folder("transformers", name, saved)
    check(name, saved, f"s3://transformers/{name}/")


@pytest.mark.parametrize("name", STORED)
def test_a_web_server_gives_what_the_folder_gives(name, tmp_path):
    saved = tmp_path / "saved"
    BY_NAME[name].save(saved)
    with ModelServer(tmp_path) as server:
        check(name, saved, f"{server.url}/saved")


def test_a_branch_of_a_private_repository_gives_what_the_folder_gives(tmp_path):
    saved = tmp_path / "org" / "repo"
    BY_NAME["llama-sharded-bf16"].save(saved)
    wanted = transformers.AutoModelForCausalLM.from_pretrained(saved)
    with HubServer(tmp_path, token="hf_right") as hub:
        storage = {"endpoint": hub.url, "token": "hf_right"}
        assert_same_model(load("hf://org/repo", revision="main", storage_options=storage), wanted)
        with pytest.raises(headrace.NotFoundError) as raised:
            load("hf://org/repo", storage_options={**storage, "token": "hf_wrong"})
    assert "org/repo" in str(raised.value) and "hf_wrong" not in str(raised.value)


def test_a_task_that_is_cancelled_while_files_are_looked_for_ends(tmp_path):
    saved = tmp_path / "saved"
    BY_NAME["llama-single-beside-index"].save(saved)
    with ModelServer(saved) as server:
        server.hold("/model.safetensors")

        async def main() -> None:
            loading = asyncio.create_task(headrace.load_hf_model(server.url, device="cpu"))
            while not server.held.is_set():
                await asyncio.sleep(0.01)
            loading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loading

        asyncio.run(asyncio.wait_for(main(), 60))


INTERRUPTED = """
import asyncio, sys
import headrace
asyncio.run(headrace.load_hf_model(sys.argv[1], device="cpu"))
"""


def test_an_interrupted_program_ends(tmp_path):
    saved = tmp_path / "saved"
    BY_NAME["llama"].save(saved)
    lengthen_header(saved / "model.safetensors")
    with ModelServer(saved) as server:
        server.hold("/model.safetensors", start=_LONG)
        child = subprocess.Popen(
            [sys.executable, "-c", processes.INTERRUPTIBLE + INTERRUPTED, server.url],
            env=processes.environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.held.wait(120)
            child.send_signal(signal.SIGINT)
            _, said = child.communicate(timeout=60)
        finally:
            child.kill()
            child.wait()
    assert child.returncode == -signal.SIGINT, said
    assert said.rstrip().endswith("KeyboardInterrupt")


def test_weights_are_placed_while_later_ones_are_still_under_way(tmp_path, monkeypatch):
    saved = tmp_path / "saved"
    BY_NAME["llama-sharded-bf16"].save(saved)
    placed = json.loads((saved / "model.safetensors.index.json").read_text())["weight_map"]
    begins_with = placed[min(placed, key=natural_order)]
    held = next(shard for shard in sorted(set(placed.values())) if shard != begins_with)
    first = threading.Event()
    original = Feed.take

    def take(self: Feed, name: str) -> Any:
        tensor = original(self, name)
        first.set()
        return tensor

    monkeypatch.setattr(Feed, "take", take)
    for shard in set(placed.values()):
        lengthen_header(saved / shard)
    with ModelServer(saved) as server:
        server.hold(f"/{held}", start=_LONG)
        outcome: list[Any] = []
        loading = threading.Thread(target=lambda: outcome.append(load(server.url)))
        loading.start()
        assert server.held.wait(60)
        assert first.wait(60), "nothing is taken before everything is there"
        assert not outcome
        server.release()
        loading.join(60)
    assert_same_model(outcome[0], transformers.AutoModelForCausalLM.from_pretrained(saved))


_LONG = 1 << 18


def lengthen_header(file: Path) -> None:
    """So long that no tensor comes with it, and that no request for a tensor begins before `_LONG`."""
    from safetensors.torch import load_file, save_file

    save_file(load_file(file), file, metadata={"format": "pt", "padding": "x" * _LONG})


def pooled(model: Any, tokenizer: Any, sentences: list[str]) -> torch.Tensor:
    tokens = tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1)


def test_the_shipped_model_embeds_sentences_as_it_does_from_disk(minilm, reached, tmp_path):
    reached.client().put_folder("transformers", "minilm", minilm)

    async def main() -> tuple[Any, Path]:
        return await headrace.load_hf_model(
            "s3://transformers/minilm", device="cpu", model_class=transformers.AutoModel, local_dir=tmp_path / "minilm"
        )

    found, folder = asyncio.run(main())
    wanted = transformers.AutoModel.from_pretrained(minilm)
    assert_same_model(found, wanted)
    sentences = ["A headrace leads water to a turbine.", "Water runs down to the power station.", "Cats sleep all day."]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ours, theirs = (pooled(model, tokenizer, sentences) for model in (found, wanted))
    assert torch.equal(ours, theirs)
    near, far = ours[0] @ ours[1], ours[0] @ ours[2]
    assert near > far + 0.2
