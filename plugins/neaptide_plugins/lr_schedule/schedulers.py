"""Finds a scheduler of torch by its name, and checks its options."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from torch.optim import lr_scheduler

from neaptide import ConfigError
from neaptide.errors import described, suggest

from .rates import TorchRates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

_WHERE = "plugins.lr-schedule"
_REFUSED = {
    "ReduceLROnPlateau": "needs a metric at each step; use one whose rate depends on updates only",
    "LambdaLR": "needs a function; choose cosine, linear, wsd or constant, or write a plugin",
    "MultiplicativeLR": "needs a function; use ExponentialLR, or write a plugin",
    "SequentialLR": "needs schedulers as objects; choose cosine, linear or wsd with warmup",
    "ChainedScheduler": "needs schedulers as objects; use one of its parts",
}
_OURS = ("self", "optimizer", "last_epoch")


def scheduler_class(name: str, options: Mapping[str, Any]) -> type[lr_scheduler.LRScheduler]:
    """Return the class; ConfigError if there is none, or if it does not know an option."""
    known = {
        one: cls
        for one, cls in vars(lr_scheduler).items()
        if inspect.isclass(cls)
        and issubclass(cls, lr_scheduler.LRScheduler)
        and cls is not lr_scheduler.LRScheduler
        and not one.startswith("_")
    }
    if name in _REFUSED:
        msg = f"{name} {_REFUSED[name]} @ {_WHERE}.name"
        raise ConfigError(msg)
    if name not in known:
        usable = sorted(known.keys() - _REFUSED)
        msg = f"torch.optim.lr_scheduler has no {name!r}{suggest(name, usable)} @ {_WHERE}.name"
        raise ConfigError(msg)
    parameters = [one for one in inspect.signature(known[name]).parameters if one not in _OURS]
    for option in options:
        if option not in parameters:
            hint = suggest(option, parameters)
            msg = f"{name} has no option {option!r}{hint} @ {_WHERE}.options.{option}"
            raise ConfigError(msg)
    return known[name]


def completed(
    cls: type[Any], options: Mapping[str, Any], steps: int, peaks: Sequence[Any]
) -> dict[str, Any]:
    """Return the options, and what the class needs of the run: its length and its peak rates."""
    parameters = inspect.signature(cls).parameters
    given = dict(options)
    if "epochs" not in given and "steps_per_epoch" not in given and "total_steps" in parameters:
        given.setdefault("total_steps", steps)
    for name, value in {"T_max": steps, "max_lr": [float(peak) for peak in peaks]}.items():
        if name in parameters:
            given.setdefault(name, value)
    return given


def torch_rates(
    name: str,
    options: Mapping[str, Any],
    optimizer: torch.optim.Optimizer,
    peaks: Sequence[Any],
    steps: int,
) -> TorchRates:
    """Return the rates of torch's scheduler `name`; ConfigError if it refuses the options."""
    cls = scheduler_class(name, options)
    made: Any = cls
    given = completed(cls, options, steps, peaks)
    try:
        rates = TorchRates(lambda carrier: made(carrier, **given), optimizer, peaks, steps - 1)
        rates.after(1)  # some options are only read by a step
    except (
        TypeError,
        ValueError,
        KeyError,
        AttributeError,
        ArithmeticError,
        IndexError,
    ) as error:
        msg = f"torch's {name} refuses its options: {described(error)} @ {_WHERE}.options"
        raise ConfigError(msg) from error
    if rates.length is not None and rates.length < steps:
        msg = (
            f"{name} ends after {rates.length} updates, and the run has train.steps = {steps}; "
            f"leave out total_steps @ {_WHERE}.options"
        )
        raise ConfigError(msg)
    return rates
