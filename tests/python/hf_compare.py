"""Whether two models are equal."""

from __future__ import annotations

from typing import Any

import torch


def assert_same_model(found: Any, wanted: Any) -> None:
    """Bit for bit: parameters and buffers, dtypes, devices, what is tied, what learns, settings."""
    assert type(found) is type(wanted)
    assert not found.training
    for kind in ("named_parameters", "named_buffers"):
        theirs = dict(getattr(wanted, kind)(remove_duplicate=False))
        ours = dict(getattr(found, kind)(remove_duplicate=False))
        assert list(ours) == list(theirs)
        differing = [name for name in ours if not _same(ours[name], theirs[name])]
        assert not differing, f"{kind} differ: {differing}"
        assert _tied(ours) == _tied(theirs)
    assert list(found.state_dict()) == list(wanted.state_dict())
    assert _settings(found.config) == _settings(wanted.config)
    assert hasattr(found, "generation_config") == hasattr(wanted, "generation_config")
    if getattr(wanted, "generation_config", None) is not None:
        assert found.generation_config.to_dict() == wanted.generation_config.to_dict()
    # What it was made with, so that it can be saved as it was.
    assert repr(getattr(found, "_weight_conversions", None)) == repr(getattr(wanted, "_weight_conversions", None))
    assert type(getattr(found, "hf_quantizer", None)) is type(getattr(wanted, "hf_quantizer", None))
    assert "None" not in {getattr(module, "name_or_path", "") for module in found.modules()}


def _same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return (
        type(ours) is type(theirs)
        and ours.dtype == theirs.dtype
        and ours.shape == theirs.shape
        and ours.device == theirs.device
        and ours.requires_grad == theirs.requires_grad
        and _bytes(ours) == _bytes(theirs)
    )


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _tied(tensors: dict[str, torch.Tensor]) -> set[frozenset[str]]:
    names: dict[int, set[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), set()).add(name)
    return {frozenset(group) for group in names.values()}


def _settings(config: Any) -> dict[str, Any]:
    return {name: value for name, value in config.to_dict().items() if name != "_name_or_path"}
