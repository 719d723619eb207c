"""Builds the optimizer that `[optimizer]` names, from torch.optim or from a class of the user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from neaptide.errors import ConfigError, suggest
from neaptide.run.defaults import check_arguments, import_object

from .optimizers import FORMS, FUSED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

_FUSED = {getattr(torch.optim, name) for name in FUSED}
_DTYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


def build(
    model: nn.Module, name: str, lr: float, options: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """Return the optimizer of the trainable parameters.

    `name` is a class of torch.optim, in any case, or `package.module:Class`. Adam and AdamW are
    fused if torch can do it for all parameters and no option says otherwise. Raises ConfigError.
    """
    found = _class_named(name)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        msg = "the model has no trainable parameters; unfreeze some (requires_grad=True)"
        raise ConfigError(msg)
    optimizer = _created(found, parameters, lr, options)
    if not isinstance(optimizer, torch.optim.Optimizer):
        msg = f"{name!r} must be a torch.optim.Optimizer @ optimizer.name"
        raise ConfigError(msg)
    return optimizer


def check(name: str, lr: float, options: Mapping[str, Any]) -> None:
    """Make one update of a 2x2 weight with the optimizer that `[optimizer]` names.

    Some wrong settings fail only at the first step. For these settings this function raises
    ConfigError before a model is built.
    """
    found = _class_named(name)
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = _created(found, [weight], lr, options)
    if ":" in name or not isinstance(optimizer, torch.optim.Optimizer):
        return
    weight.grad = torch.zeros(2, 2)
    try:
        optimizer.step()
    except Exception as error:
        raise _refused(found, lr, options, error) from error


def _created(found: Any, parameters: Any, lr: float, options: Mapping[str, Any]) -> Any:
    check_arguments(found, options, "optimizer.options")
    by_default = {"fused": True} if _is_fused(found, parameters, options) else {}
    try:
        return found(parameters, lr=lr, **by_default, **options)
    except Exception as error:
        raise _refused(found, lr, options, error) from error


def _is_fused(found: Any, parameters: Iterable[nn.Parameter], options: Mapping[str, Any]) -> bool:
    """Return whether the optimizer is fused because no option says otherwise.

    The fused step on a CPU ignores strides, so every parameter must be contiguous.
    """
    return (
        found in _FUSED
        and FORMS.isdisjoint(options)
        and all(
            type(one) is torch.nn.Parameter
            and one.device.type in _get_fused_kernels_supported_devices()
            and one.dtype in _DTYPES
            and one.is_contiguous()
            for one in parameters
        )
    )


def _refused(found: Any, lr: float, options: Mapping[str, Any], error: Exception) -> ConfigError:
    """Return the error for refused settings. It names the first setting that is refused alone."""
    name, told = getattr(found, "__name__", str(found)), " ".join(str(error).split())
    if _works(found, lr, {}):
        for key, value in options.items():
            if not _works(found, lr, {key: value}):
                msg = f"{name} refused {key} = {value!r}: {told} @ optimizer.options.{key}"
                return ConfigError(msg)
    return ConfigError(f"{name} refused its settings: {told} @ optimizer.options")


def _works(found: Any, lr: float, options: Mapping[str, Any]) -> bool:
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    weight.grad = torch.zeros(2, 2)
    try:
        found([weight], lr=lr, **options).step()
    except Exception:  # noqa: BLE001 - the caller has the error of all settings together
        return False
    return True


def _class_named(name: str) -> Any:
    if ":" in name:
        found = import_object(name, "optimizer.name")
        if not callable(found):
            msg = f"{name!r} must be callable (got {type(found).__name__}) @ optimizer.name"
            raise ConfigError(msg)
        return found
    known = {
        found.lower(): value
        for found, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer)
    }
    known.pop("optimizer")
    # LBFGS needs a closure that runs the model again; a step here is one forward and backward.
    known.pop("lbfgs")
    # SparseAdam takes only sparse gradients; hardly any model has only sparse gradients.
    known.pop("sparseadam")
    if name.lower() not in known:
        msg = (
            f"unknown optimizer {name!r}{suggest(name.lower(), known)}; there is "
            f"{', '.join(sorted(known))}, or 'package.module:Class' @ optimizer.name"
        )
        raise ConfigError(msg)
    return known[name.lower()]
