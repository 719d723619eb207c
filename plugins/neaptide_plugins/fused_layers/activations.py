"""The activation of a gated MLP: which one it is, and whether it still is the same."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs
import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from neaptide_kernels.gated_unit import ACTIVATIONS

from .trials import TRIED, drawn, plainly, same

TORCHS_OWN = frozenset(vars(nn.Module()))
"""Names of attributes that every module has."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@attrs.frozen
class Activation:
    """An activation that an op knows."""

    name: str
    """Its name in `neaptide_kernels.gated_unit.ACTIVATIONS`."""
    kind: Any
    """The function, or the class of the module."""
    settings: tuple[tuple[str, Any], ...] = ()
    """The attributes of the module."""

    def holds(self, act: Any) -> bool:
        """Return whether `act` still computes this, and has no hook that wants to see it."""
        if not isinstance(act, nn.Module):
            return _alike(act, self.kind)
        return (
            type(act) is self.kind
            and "forward" not in act.__dict__
            and not hooked(act)
            and all(_alike(getattr(act, name, None), value) for name, value in self.settings)
        )


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, partial) and isinstance(other, partial):
        return (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)
    return bool(one == other)


def hooked(module: nn.Module) -> bool:
    """Return whether a module has hooks, which a fused op would not call."""
    return any(getattr(module, name) for name in _HOOKS)


def activation_of(act: Any) -> Activation | None:
    """Return which activation `act` is; None if it is another, or holds more than settings."""
    if not callable(act) or _has_any_global_hook():  # type: ignore[no-untyped-call]  # torch's
        return None
    settings: tuple[tuple[str, Any], ...] = ()
    if isinstance(act, nn.Module):
        settings = tuple((n, v) for n, v in sorted(vars(act).items()) if n not in TORCHS_OWN)
        parts = [*act.children(), *act.parameters(), *act.buffers()]
        tensors = any(isinstance(value, torch.Tensor) for _, value in settings)
        if parts or tensors or hooked(act) or "forward" in vars(act):
            return None
    with plainly() as random:
        x = torch.cat([drawn((200,), random) * 4, torch.tensor([1e4, -1e4, 1e-5, 0, torch.nan])])
        for name, known in ACTIVATIONS.items():
            if all(same(partial(act, x.to(dtype)), known(x.to(dtype))) for dtype in TRIED):
                kind = type(act) if isinstance(act, nn.Module) else act
                return Activation(name, kind, settings)
    return None
