"""Finds out whether a loss function uses the model that it is given, and no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from neaptide.errors import ModelError

from .outline import WAY_OUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from .outline import Outline


class _UseCheck(TorchFunctionMode):
    """Raises ModelError if an operation takes a tensor of the trained model."""

    def __init__(self, outline: Outline) -> None:
        super().__init__()
        self._names = outline.names()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        own = kwargs or {}
        for value in (*args, *own.values()):
            for one in value if isinstance(value, list | tuple) else (value,):
                if id(one) in self._names:
                    raise _used(self._names[id(one)])
        return func(*args, **own)


def check_apart(
    outline: Outline, copy: nn.Module, loss_fn: Callable[[nn.Module, Any], Any], batch: Any
) -> None:
    """Compute the loss of a copy once; raise ModelError if this uses the trained model.

    Any other error is left to the run that follows.
    """
    places = outline.places()

    def check(module: nn.Module, _: Any) -> None:
        if id(module) in places:
            raise _used(places[id(module)] or "itself")

    hook = register_module_forward_pre_hook(check)
    try:
        with _UseCheck(outline), torch.compiler.set_stance("force_eager"):
            loss_fn(copy, batch)
    except ModelError:
        raise
    except Exception:  # noqa: BLE001, S110 - the run tells it
        pass
    finally:
        hook.remove()


def _used(name: str) -> ModelError:
    return ModelError(
        f"loss_fn uses {name!r} of the trained model, and not of the model that it is given; "
        f"{WAY_OUT}"
    )
