"""torch modules: built without memory for their weights, and filled."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

_lock = threading.Lock()
_hooked = False
_here = threading.local()


def _to_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
    if not getattr(_here, "depth", 0):
        return None
    if parameter is None or parameter.is_meta or is_lazy(parameter):
        return None
    kind = type(parameter)
    kept = dict(parameter.__dict__)
    moved = torch.Tensor._make_subclass(kind, parameter.data.to("meta"), parameter.requires_grad)
    moved.__dict__.update(kept)
    return moved


@contextlib.contextmanager
def empty_weights() -> Iterator[None]:
    """Modules that are built inside have their parameters on `meta`, where they take no memory; buffers are real.

    Concerns the thread that enters it, and no other: threads may build modules at once, inside and outside. Parameters that
    are tied stay tied. Fill such a module by `ModelStreamer.load_into(module, device=...)`.

        with headrace.empty_weights():
            module = MyModel(config)
    """
    global _hooked
    with _lock:
        # Registered once and for good: other threads may be inside the list of hooks at any time. Outside of this context
        # it does nothing.
        if not _hooked:
            register_module_parameter_registration_hook(_to_meta)  # type: ignore[arg-type]
            _hooked = True
    _here.depth = getattr(_here, "depth", 0) + 1
    try:
        yield
    finally:
        _here.depth -= 1


def missing_parameters(module: nn.Module) -> list[str]:
    """Names of the module's parameters and buffers that are still on `meta`: what nothing has filled yet.

        assert not headrace.missing_parameters(module)
    """
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return [name for name, tensor in named if tensor.is_meta]


class Entry(NamedTuple):
    """A place in a module that a tensor of a checkpoint can take."""

    owner: nn.Module
    name: str
    is_parameter: bool

    @property
    def current(self) -> torch.Tensor:
        held = self.owner._parameters if self.is_parameter else self.owner._buffers
        tensor = held[self.name]
        assert tensor is not None
        return tensor

    def assign(self, tensor: torch.Tensor) -> None:
        if self.is_parameter:
            assert tensor is None or isinstance(tensor, nn.Parameter)
            self.owner._parameters[self.name] = tensor
        else:
            self.owner._buffers[self.name] = tensor


def entries(module: nn.Module) -> dict[str, Entry]:
    """By name, what `state_dict` would hold: parameters and persistent buffers, tied ones under each of their names."""
    found: dict[str, Entry] = {}
    for prefix, owner in module.named_modules(remove_duplicate=False):
        start = f"{prefix}." if prefix else ""
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                found[start + name] = Entry(owner, name, True)
        for name, buffer in owner._buffers.items():
            if buffer is not None and name not in owner._non_persistent_buffers_set:
                found[start + name] = Entry(owner, name, False)
    return found


def some(names: list[str], most: int = 10) -> str:
    """Up to `most` of the names, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
