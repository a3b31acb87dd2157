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
