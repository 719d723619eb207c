"""After a run that went out of memory: what would have avoided it, and how wrong the plan was."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs
import psutil
import torch

from neaptide.devices import api_of
from neaptide.errors import text_of
from neaptide.io.units import size
from neaptide.run.assembly import choose_device
from neaptide_toolkit.machine.meter import high_water

from .asking import ask
from .machine import CONTEXT, free_now

if TYPE_CHECKING:
    from neaptide.config import RunConfig

    from .asking import Answer
    from .machine import PlannedMachine

_TRIED = re.compile(r"ried to allocate ([0-9.]+) ?(bytes|KiB|MiB|GiB|TiB)?", re.IGNORECASE)
_FAR = 10
"""From this factor on, a difference is told as a factor and not in percent."""
_UNITS = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def way_out(config: RunConfig, error: BaseException) -> str:
    """Return advice for the message of `error`: the change with which the run would have fitted.

    Plans the run on this machine. Also says how far the plan is from what was allocated. Returns an
    empty text if the run is not planned.
    """
    if config.run.plan == "off":
        return ""
    machine = free_now(config.train.device)
    tier = "device" if machine.device and isinstance(error, torch.OutOfMemoryError) else "RAM"
    took = _allocated(tier, config) + _tried(text_of(error))
    has = (machine.device if tier == "device" else machine.host) or 0
    found = ask(config, machine)
    if found.problem is None and found.fits:
        # The plan is too low by this part at least, and so is that of a change.
        low = found.needed[tier] / max(took, has, 1)
        found = ask(config, _with(tier, int(has * min(1.0, low)) - 1, machine))
    if found.problem is not None:
        return ""
    return f"{_change(found)}; {_wrong(tier, found.needed[tier], has, took)}"


def _change(found: Answer) -> str:
    if found.best is None:
        return "no change that a plugin offers makes it fit, so lower train.batch_size"
    return f"by the plan it fits with {found.best}"


def _wrong(tier: str, planned: int, has: int, took: int) -> str:
    named = "the device" if tier == "device" else tier
    if planned > has:
        return (
            f"the plan was right: the run needs {size(planned)} of {named}, which has {size(has)}; "
            f"{size(took)} were asked for when it ended"
        )
    least = max(took, has)
    factor = least / planned
    more = f"{factor - 1:.0%} more" if factor < _FAR else f"{factor:,.0f} times as much"
    return (
        f"the plan was wrong: it says {size(planned)} of {named}, and {size(least)} were not "
        f"enough, {more}"
    )


def _allocated(tier: str, config: RunConfig) -> int:
    """Return the most bytes that this process has had of a tier, in tensors or in RAM."""
    if tier == "device":
        device = choose_device(config.train.device, None)
        return int(api_of(device).max_memory_allocated(device)) + CONTEXT
    return high_water() or int(psutil.Process().memory_info().rss)


def _tried(text: str) -> int:
    """Return the bytes that could not be allocated, by the error's text; 0 if it does not tell."""
    found = _TRIED.search(text)
    return 0 if found is None else int(float(found[1]) * _UNITS.get((found[2] or "").lower(), 1))


def _with(tier: str, nbytes: int, machine: PlannedMachine) -> PlannedMachine:
    if tier == "device":
        return attrs.evolve(machine, device=nbytes)
    return attrs.evolve(machine, host=nbytes)
