"""Before a run: it is refused if it does not fit, before the memory for it is taken."""

from __future__ import annotations

import gc
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from neaptide.config import unstructure
from neaptide.config.tables import overlay
from neaptide.errors import ConfigError, DoesNotFitError
from neaptide.hooks.enabling import configured
from neaptide.io.logging import CONSOLE
from neaptide.io.units import size
from neaptide.run.assembly import BUILDING
from neaptide_toolkit.ranks.launching import place

from .asking import ask
from .auto.choosing import asks
from .machine import CONTEXT, free_now
from .value import written

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import HybridTrainer
    from neaptide.config import RunConfig

    from .asking import Answer

SHARE = 8
"""A model is large if its factory makes more bytes of tensors than this part of RAM, or of the
device. With gradients and AdamW's state, float32 weights of this size take half of the memory."""


_CPU = torch.device("cpu")


class LargeModelFound(BaseException):
    """A factory makes a large model. No `except Exception` of the factory may end this."""


class CountedFactory(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it so
    """Within this mode, LargeModelFound is raised when more than `limit` bytes have been made.

    Values are computed as without it. Where an operation is told the size, it is counted before it
    runs. Tensors on the meta device take no memory. A tensor that is larger than RAM raises
    DoesNotFitError.
    """

    def __init__(self, limit: float, ram: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left, self._ram = limit, ram

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not _makes(func):
            return func(*args, **kwargs)
        told = _told(func, args, kwargs)
        if told > self._ram and kwargs.get("device", _CPU).type == "cpu":
            msg = (
                f"does not fit: the model has a tensor of {size(told)}, and RAM has "
                f"{size(int(self._ram))}; divide it, or build it on the device @ model.name"
            )
            raise DoesNotFitError(msg)
        self._count(told)
        made = func(*args, **kwargs)
        if not told:
            tensors = [one for one in tree_iter(made) if isinstance(one, torch.Tensor)]
            self._count(sum(one.nbytes for one in tensors if not one.is_meta))
        return made

    def _count(self, nbytes: int) -> None:
        self._left -= nbytes
        if self._left < 0:
            raise LargeModelFound


@cache
def _makes(func: Any) -> bool:
    schema = func._schema  # noqa: SLF001 - the public way to it does not exist
    return not func.is_view and not any(
        one.alias_info and one.alias_info.is_write for one in schema.arguments
    )


@cache
def _place_of_size(func: Any) -> int | None:
    arguments = func._schema.arguments  # noqa: SLF001 - as above
    names = [one.name for one in arguments if not one.kwarg_only]
    return names.index("size") if "size" in names else None


def _told(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return the bytes that an operation will make; 0 if its arguments do not tell."""
    place = _place_of_size(func)
    device = kwargs.get("device")
    if place is None or place >= len(args) or (device is not None and device.type == "meta"):
        return 0
    sample = args[0].dtype if isinstance(args[0], torch.Tensor) else torch.get_default_dtype()
    return torch.Size(args[place]).numel() * (kwargs.get("dtype") or sample).itemsize


def checked(config: RunConfig, make: Callable[[RunConfig], HybridTrainer]) -> HybridTrainer:
    """Return what `make` makes of the configuration, unless the run does not fit this machine.

    What the configuration leaves to the plan is chosen first. With `run.plan = "auto"`, another run
    is planned if its factory makes a large model. It is then stopped, and called anew if the run
    fits.

    Raises:
        DoesNotFitError: it does not fit.
        ConfigError: settings are left to a plan, and there is none.
    """
    chooses = asks(config)
    if config.run.plan == "off" and not chooses:
        return make(config)
    machine = free_now(config.train.device)
    ram = float("inf") if machine.host is None else machine.host
    if chooses:
        return _counted(partial(make, _with_choice(config)), float("inf"), ram)
    if config.run.plan == "auto":
        device = float("inf") if machine.device is None else machine.device - CONTEXT
        try:
            return _counted(partial(make, config), min(ram, device) / SHARE, ram)
        except LargeModelFound:
            gc.collect()  # what was made of the model
    refuse_what_does_not_fit(config)
    return _counted(partial(make, config), float("inf"), ram)


def _counted(make: Callable[[], HybridTrainer], limit: float, ram: float) -> HybridTrainer:
    token = BUILDING.set(lambda: CountedFactory(limit, ram))
    try:
        return make()
    finally:
        BUILDING.reset(token)


def _with_choice(config: RunConfig) -> RunConfig:
    """Return a configuration with what a plan on this machine chooses."""
    if config.run.plan == "off":
        msg = "settings that are 'auto' are chosen by a plan; give numbers, or allow it @ run.plan"
        raise ConfigError(msg)
    if place()[1] > 1:
        msg = (
            "each process would choose settings that are 'auto' by itself; give numbers, such as "
            "those that `neaptide plan --nproc` chooses @ plugins"
        )
        raise ConfigError(msg)
    found = ask(config, free_now(config.train.device))
    if found.chosen is None:
        why = f"{found.problem}; mend that, or give numbers @ plugins"
        msg = f"no plan can choose settings that are 'auto': {why}"
        raise ConfigError(msg)
    _refuse(found)
    CONSOLE.info("the plan chose %s", ", ".join(written(found.chosen)))
    return configured(overlay(unstructure(config), found.chosen))[0]


def refuse_what_does_not_fit(config: RunConfig) -> None:
    """Plan a run on this machine, with the memory that is free.

    Raises:
        DoesNotFitError: it does not fit.
    """
    found = ask(config, free_now(config.train.device))
    if found.problem is not None:
        CONSOLE.warning("the run is not planned: %s", found.problem)
    _refuse(found)


def _refuse(found: Answer) -> None:
    if not found.fits:
        nearest = "no change that a plugin offers is enough"
        if found.best is not None:
            nearest = f"nearest: {found.best}"
        msg = f'{found.verdict}; {nearest}; run.plan = "off" tries all the same @ run.plan'
        raise DoesNotFitError(msg)
