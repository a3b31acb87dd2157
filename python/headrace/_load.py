"""`ModelStreamer.load_into`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from headrace._info import LoadResult
from headrace._modules import Entry, entries, some
from headrace._torch import Placement, shape_of

if TYPE_CHECKING:
    from headrace._streamer import KeyMapping, ModelStreamer


async def load_into(
    streamer: ModelStreamer,
    module: nn.Module,
    *,
    device: Any,
    dtype: torch.dtype | None,
    strict: bool,
    key_mapping: KeyMapping | None,
) -> LoadResult:
    Placement(device, dtype)  # what is wrong with them is said before anything is fetched
    await streamer.open()
    targets = entries(module)
    plan, unexpected = _match(streamer, targets, key_mapping)
    _check_shapes(streamer, targets, plan)
    if device is None:
        _check_devices(targets, plan)

    ties = _ties(targets)
    originals = {name: entry.current for name, entry in targets.items()}
    filled = {other for name in plan.values() for other in ties[name]}
    missing = [name for name in targets if name not in filled]
    tie_weights = getattr(module, "tie_weights", None)
    if strict and not callable(tie_weights):
        _complain(missing, unexpected)

    await _fill(streamer, targets, plan, ties, device, dtype)
    if callable(tie_weights):
        tie_weights()
    after = entries(module)
    missing = [name for name in missing if name in after and after[name].current is originals[name]]
    if strict:
        _complain(missing, unexpected)
    return LoadResult(missing, unexpected)


def _match(
    streamer: ModelStreamer, targets: Mapping[str, Entry], key_mapping: KeyMapping | None
) -> tuple[dict[str, str], list[str]]:
    """Names of the checkpoint to those of the module, and those that the module lacks."""
    source = streamer._source
    model = source.open()
    chosen = source.chosen(model)
    plan: dict[str, str] = {}
    taken: dict[str, str] = {}
    unexpected = []
    for name in streamer.keys() if chosen is None else chosen:
        key: str | None = name
        if isinstance(key_mapping, Mapping):
            key = key_mapping.get(name, name)
        elif key_mapping is not None:
            key = key_mapping(name)
        if key is None:
            continue
        if key not in targets:
            unexpected.append(name)
            continue
        if key in taken:
            raise ValueError(f"{taken[key]!r} and {name!r} of the checkpoint are both meant for {key!r}")
        taken[key] = name
        plan[name] = key
    return plan, unexpected


def _check_shapes(streamer: ModelStreamer, targets: Mapping[str, Entry], plan: Mapping[str, str]) -> None:
    wrong = []
    for name, key in plan.items():
        if nn.parameter.is_lazy(targets[key].current):
            continue
        info = streamer.info(name)
        here = tuple(targets[key].current.shape)
        there = shape_of(name, info.dtype, info.shape)
        if here != there:
            wrong.append(f"{key!r}: checkpoint shape {there} != module shape {here}")
    if wrong:
        more = f"; and {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise ValueError("; ".join(wrong[:10]) + more)


def _check_devices(targets: Mapping[str, Entry], plan: Mapping[str, str]) -> None:
    for key in plan.values():
        if targets[key].current.is_meta:
            raise ValueError(f"{key!r} is on the meta device, which holds no data: pass device= to say where it goes")


def _ties(targets: Mapping[str, Entry]) -> dict[str, list[str]]:
    """For each name all names of the same tensor, itself among them."""
    by_tensor: dict[int, list[str]] = {}
    for name, entry in targets.items():
        by_tensor.setdefault(id(entry.current), []).append(name)
    return {name: names for names in by_tensor.values() for name in names}


async def _fill(
    streamer: ModelStreamer,
    targets: Mapping[str, Entry],
    plan: Mapping[str, str],
    ties: Mapping[str, list[str]],
    device: Any,
    dtype: torch.dtype | None,
) -> None:
    where = {key: targets[key].current.device for key in plan.values()}
    # One stream to a device: it arrives there, and is cast there.
    for each in dict.fromkeys(where.values()) if device is None else [device]:
        names = [name for name, key in plan.items() if device is not None or where[key] == each]
        async with streamer.stream(device=each, dtype=dtype, tensors=names) as arriving:
            async for name, tensor in arriving:
                _assign(targets, plan, plan[name], ties, tensor)


def _assign(
    targets: Mapping[str, Entry],
    plan: Mapping[str, str],
    key: str,
    ties: Mapping[str, list[str]],
    tensor: torch.Tensor,
) -> None:
    entry = targets[key]
    made = tensor
    if entry.is_parameter:
        can_require = tensor.is_floating_point() or tensor.is_complex()
        made = nn.Parameter(tensor, requires_grad=entry.current.requires_grad and can_require)
    own = set(plan.values())
    for name in ties[key]:
        # A tied name of which the checkpoint holds a tensor of its own gets that one.
        if name == key or name not in own:
            targets[name].assign(made)


def _complain(missing: list[str], unexpected: list[str]) -> None:
    problems = []
    if missing:
        problems.append(f"{len(missing)} missing: {some(missing)}")
    if unexpected:
        problems.append(f"{len(unexpected)} unexpected: {some(unexpected)}")
    if problems:
        raise KeyError("the checkpoint and the module do not match: " + "; ".join(problems))
