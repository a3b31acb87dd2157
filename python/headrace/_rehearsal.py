"""Loads a model without its bytes, to know before anything is fetched whether all of it can be loaded.

The loading is transformers' own, on the device `meta`: its renamings, its conversions, its tying. So what it finds
missing, or of another shape, is what it would find with the bytes. Where the installed transformers cannot be
rehearsed, nothing is known early, and the loading itself has the last word.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from headrace._promises import Promise, natural_order

_logger = logging.getLogger("headrace")

_MOST_NAMED = 10


class Rehearsal(NamedTuple):
    """What loading would come to."""

    order: list[str]
    """The tensors that are taken, in the order in which they are."""
    missing: list[str]
    """What the model has and the checkpoint lacks."""
    mismatched: list[tuple[str, tuple[int, ...], tuple[int, ...]]]
    """Name in the model, shape in the checkpoint, shape in the model."""
    incomplete: dict[str, list[str]]
    """What the checkpoint lacks of the tensors that a tensor of the model is made of, such as single experts."""


class _Rehearsed(BaseException):
    """Ends a rehearsal. Not an Exception: nobody on the way may take it for an error."""


class _Prop:
    """Stands for a tensor: has its dtype and shape, and notes who asks for it."""

    def __init__(self, promise: Promise, taken: dict[str, int]) -> None:
        self.name = promise.name
        self.dtype = promise.dtype
        self.shape = promise.shape
        self._taken = taken

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def __getitem__(self, index: Any) -> torch.Tensor:
        self._taken[self.name] = threading.get_ident()
        return torch.empty(self.shape, dtype=self.dtype, device="meta")


def rehearse(concrete: type, promises: Mapping[str, Promise], options: Mapping[str, Any]) -> Rehearsal | None:
    """Loads `concrete`, a class of models, as `concrete.from_pretrained(None, state_dict=promises, **options)` would.

    None where this transformers cannot do that without the bytes. Under the lock of loadings; takes none of the
    promises.
    """
    if not _can_rehearse(concrete):
        return None
    outcome: dict[str, Any] = {}
    taken: dict[str, int] = {}
    try:
        _stage(concrete, outcome).from_pretrained(
            None, state_dict={name: _Prop(promise, taken) for name, promise in promises.items()}, **options
        )
    except _Rehearsed:
        pass
    except Exception as error:  # whatever it is, the loading itself will say it better
        _logger.debug("%s cannot be rehearsed: %s", concrete.__name__, error)
        return None
    if "info" not in outcome:
        return None
    model, info, mapping = outcome["model"], outcome["info"], outcome["mapping"]
    mismatched = sorted((name, tuple(found), tuple(wanted)) for name, found, wanted in info.mismatched_keys)
    incomplete = {}
    troubled: dict[str, tuple[int, ...] | None] = dict.fromkeys(info.conversion_errors)
    troubled.update((name, wanted) for name, _, wanted in mismatched)
    if troubled:
        incomplete = _incomplete(model, mapping, promises, troubled)
    # A tensor that could not be made is not missing, unless what it is made of is.
    failed = set(incomplete) | set(info.conversion_errors)
    missing = sorted(set(info.missing_keys) - failed, key=natural_order)
    return Rehearsal(_order(taken), missing, mismatched, incomplete)


def raise_for(rehearsal: Rehearsal, what: str) -> None:
    """KeyError for what is missing, ValueError for shapes that differ. `what`: the model and where it comes from."""
    if rehearsal.incomplete:
        lacking = [name for names in rehearsal.incomplete.values() for name in names]
        raise KeyError(f"{what}: the checkpoint lacks {_some(lacking)}, of which {_some(rehearsal.incomplete)} is made")
    raise_for_missing(rehearsal.missing, what)
    raise_for_mismatched(rehearsal.mismatched, what)


def raise_for_missing(names: Iterable[str], what: str) -> None:
    missing = sorted(names, key=natural_order)
    if missing:
        raise KeyError(
            f"{what}: the checkpoint lacks {len(missing)} of the model's tensors: {_some(missing)}; is this the model_class "
            "that it was saved from?"
        )


def raise_for_mismatched(mismatched: Iterable[tuple[str, Any, Any]], what: str) -> None:
    differing = [f"{name!r} is {tuple(found)} in the checkpoint and {tuple(wanted)} in the model"
                 for name, found, wanted in sorted(mismatched, key=lambda each: natural_order(each[0]))]  # fmt: skip
    if differing:
        more = f" and {len(differing) - _MOST_NAMED} more" if len(differing) > _MOST_NAMED else ""
        raise ValueError(f"{what}: shapes differ: {'; '.join(differing[:_MOST_NAMED])}{more}")


def _some(names: Iterable[str]) -> str:
    shown = [repr(name) for name in names]
    more = f" and {len(shown) - _MOST_NAMED} more" if len(shown) > _MOST_NAMED else ""
    return ", ".join(shown[:_MOST_NAMED]) + more


def _can_rehearse(concrete: Any) -> bool:
    """Whether loading is made of the two steps that are replaced here, as it is since transformers 5.0."""
    wanted = {
        "_load_pretrained_model": ["model", "state_dict", "checkpoint_files", "load_config"],
        "_finalize_model_loading": ["model", "load_config", "loading_info"],
    }
    for name, parameters in wanted.items():
        step = getattr(concrete, name, None)
        if step is None or list(inspect.signature(step).parameters)[: len(parameters)] != parameters:
            return False
    return True


def _stage(concrete: Any, outcome: dict[str, Any]) -> Any:
    """The same class, but nothing of it is placed on a device, initialised or reported."""

    def load(model: Any, state_dict: Any, checkpoint_files: Any, load_config: Any, *rest: Any, **more: Any) -> Any:
        load_config = dataclasses.replace(load_config, device_map={"": torch.device("meta")})
        outcome["mapping"] = load_config.weight_mapping or []
        return concrete._load_pretrained_model(model, state_dict, checkpoint_files, load_config, *rest, **more)

    def finalize(model: Any, load_config: Any, loading_info: Any) -> Any:
        model.mark_tied_weights_as_initialized(loading_info)
        model.tie_weights(missing_keys=loading_info.missing_keys, recompute_mapping=False)
        model._adjust_missing_and_unexpected_keys(loading_info)
        outcome.update(model=model, info=loading_info)
        raise _Rehearsed

    # Under its own name: transformers looks up by class and module what is to be converted, patched and kept.
    return type(
        concrete.__name__,
        (concrete,),
        {
            "__module__": concrete.__module__,
            "__qualname__": concrete.__qualname__,
            "_load_pretrained_model": staticmethod(load),
            "_finalize_model_loading": staticmethod(finalize),
        },
    )


def _order(taken: dict[str, int]) -> list[str]:
    if len(set(taken.values())) == 1 and threading.get_ident() in taken.values():
        return list(taken)  # one after another, without workers: it will be the same order again
    return sorted(taken, key=natural_order)


def _incomplete(
    model: Any, mapping: list[Any], promises: Mapping[str, Promise], troubled: Mapping[str, tuple[int, ...] | None]
) -> dict[str, list[str]]:
    """Of the troubled tensors of the model, with the shapes that are known, those that are made of several of which the
    checkpoint lacks some, and which."""
    try:
        from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
    except ImportError:
        return {}
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    shapes = model.state_dict()
    groups: dict[str, dict[str, list[str]]] = {}
    for name in sorted(promises, key=natural_order):
        target, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, shapes)
        if pattern is not None and target in troubled:
            groups.setdefault(target, {}).setdefault(pattern, []).append(name)
    patterns = {pattern: entry.source_patterns for entry in converters for pattern in entry.source_patterns}
    found = {}
    for target, group in groups.items():
        lacking = _gaps(group, troubled[target])
        lacking += [pattern for pattern in patterns[next(iter(group))] if pattern not in group]
        if lacking:
            found[target] = lacking
    return found


class _Row(NamedTuple):
    """Names that are alike but for one number."""

    before: str
    after: str
    numbers: set[int]


def _gaps(group: dict[str, list[str]], shape: tuple[int, ...] | None) -> list[str]:
    """Names that complete a group: each pattern of it has a row of names, and the rows have the same numbers."""
    rows = [row for names in group.values() if (row := _row(names)) is not None]
    if len(rows) != len(group):
        return []
    known = set().union(*(row.numbers for row in rows))
    count = max(known) + 1
    if all(row.numbers == set(range(count)) for row in rows) and shape and shape[0] > count:
        count = shape[0]  # what is stacked lacks its end
    return [f"{row.before}{number}{row.after}" for row in rows for number in range(count) if number not in row.numbers]


def _row(names: list[str]) -> _Row | None:
    """None where the names are no row."""
    split = [name.split(".") for name in names]
    if len(split) < 2 or len({len(parts) for parts in split}) != 1:
        return None
    differing = [at for at, column in enumerate(zip(*split)) if len(set(column)) > 1]
    if len(differing) != 1 or not all(parts[differing[0]].isdigit() for parts in split):
        return None
    at = differing[0]
    before = "".join(f"{part}." for part in split[0][:at])
    after = "".join(f".{part}" for part in split[0][at + 1 :])
    return _Row(before, after, {int(parts[at]) for parts in split})
