"""`load_hf_model` against `from_pretrained` on the same files."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hf_compare import assert_same_model  # noqa: E402
from hf_models import SAMPLES, Sample  # noqa: E402

import headrace  # noqa: E402


def load(path: Any, **options: Any) -> Any:
    model, folder = asyncio.run(headrace.load_hf_model(path, **{"device": "cpu", **options}))
    return model


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_loads_what_from_pretrained_loads(sample: Sample, tmp_path: Path) -> None:
    if int(transformers.__version__.split(".")[0]) < sample.since:
        pytest.skip(f"transformers before {sample.since}.0 does not load this, or not on a CPU")
    saved = tmp_path / "saved"
    sample.save(saved)
    wanted = sample.loader().from_pretrained(saved, **sample.options)
    found = load(saved, model_class=sample.loader(), local_dir=tmp_path / "small", **sample.options)
    assert_same_model(found, wanted)
    assert not headrace.missing_parameters(found)


def _nudge(model: Any) -> None:
    with torch.no_grad():
        weight = model.model.norm.weight
        weight[0] = torch.nextafter(weight[0], torch.tensor(torch.inf))


def _untie(model: Any) -> None:
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())


def _cast(model: Any) -> None:
    model.model.norm.half()


def _freeze(model: Any) -> None:
    model.model.norm.weight.requires_grad_(False)


def _change_buffer(model: Any) -> None:
    model.model.rotary_emb.inv_freq += 1


def _change_settings(model: Any) -> None:
    model.generation_config.max_length = 7


@pytest.mark.parametrize("change", [_nudge, _untie, _cast, _freeze, _change_buffer, _change_settings])
def test_the_comparison_sees_a_difference(change: Any, tmp_path: Path) -> None:
    next(sample for sample in SAMPLES if sample.name == "llama-tied").save(tmp_path)
    kind = transformers.AutoModelForCausalLM
    wanted, found = kind.from_pretrained(tmp_path), kind.from_pretrained(tmp_path)
    assert_same_model(found, wanted)
    change(found)
    with pytest.raises(AssertionError):
        assert_same_model(found, wanted)
