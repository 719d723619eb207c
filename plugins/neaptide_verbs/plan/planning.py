"""Plans a configuration: a dry run, its peaks on each tier, and what the machine has."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from neaptide.errors import ConfigError, DoesNotFitError, NeaptideError
from neaptide.io.units import size
from neaptide_toolkit.dry_run.allocations import OTHER, no_limit
from neaptide_toolkit.dry_run.running import dry_run
from neaptide_toolkit.machine.pretended import with_ram

from .machine import CONTEXT
from .value import Plan, TierPlan, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neaptide.config import RunConfig
    from neaptide_toolkit.dry_run.allocations import Check, Peak, Where
    from neaptide_toolkit.dry_run.clock import Times
    from neaptide_toolkit.dry_run.running import DryRun

    from .machine import PlannedMachine

_KINDS = {
    "forward": "activations",
    "backward": "temporary",
    "update": "temporary",
    "evaluate": "temporary",
    "predict": "temporary",
}
"""What memory is for, by the moment at which it was allocated, if nothing else is known."""


class PlanTooLongError(NeaptideError):
    """A plan was ended because its time was over."""


def plan(config: RunConfig, target: PlannedMachine, check: Check = no_limit) -> Plan:
    """Return the plan of `config` on a machine. No tensor's values are computed.

    Args:
        config: of the run.
        target: the machine.
        check: sees the bytes of tensors in each place. What it raises ends the plan.

    Raises:
        NeaptideError: the configuration cannot run, or its model needs values.
    """
    return plans(config, [target], check)[0]


def plans(
    config: RunConfig, targets: Sequence[PlannedMachine], check: Check = no_limit
) -> list[Plan]:
    """Return the plan of `config` on each of several machines, by one dry run.

    Args:
        config: of the run.
        targets: machines of one kind with the same RAM. If there are several, all have rates.
        check: as in `plan`.

    Raises:
        NeaptideError: as `plan`.
    """
    first, rates = targets[0], [one.rates for one in targets if one.rates is not None]
    if len(targets) > 1 and len(rates) < len(targets):
        msg = "several machines are planned together if all have rates; plan the others alone"
        raise ConfigError(msg)
    with with_ram(first.host):
        done = dry_run(config, rates, first.kind, check)
    times = done.times or (None,)
    return [_plan(done, one, spent) for one, spent in zip(targets, times, strict=True)]


def _plan(done: DryRun, target: PlannedMachine, spent: Times | None) -> Plan:
    seconds, busy = (None, {}) if spent is None else (spent.seconds, spent.busy)
    tokens = done.tokens / seconds if seconds and done.tokens is not None else None
    return Plan(
        machine=target.name,
        tiers=_tiers(done, target),
        seconds_per_step=seconds,
        tokens_per_second=tokens,
        bound_by=max(busy, key=lambda engine: busy[engine], default=None),
        busy=busy,
        disk_written=done.written,
        assumptions=done.assumptions,
    )


def plan_if_fits(config: RunConfig, target: PlannedMachine, end: float = math.inf) -> Plan:
    """Return the plan of `config`. It ends as soon as tensors alone are too much for a tier.

    Args:
        config: of the run.
        target: the machine.
        end: the time, by `time.monotonic`, at which it ends, too.

    Raises:
        DoesNotFitError: a tier is too small.
        PlanTooLongError: it took too long.
        NeaptideError: as `plan`.
    """
    tiers: dict[str, tuple[int | None, tuple[Where, ...]]] = {
        "RAM": (target.host, ("host", "pages")),
        "disk": (target.disk, ("disk",)),
    }
    if target.device is None:
        tiers["RAM"] = (target.host, ("device", "host", "pages"))
    else:
        tiers["device"] = (target.device - CONTEXT, ("device",))

    def check(now: Mapping[Where, int]) -> None:
        if time.monotonic() > end:
            msg = "the plan takes too long"
            raise PlanTooLongError(msg)
        for name, (most, places) in tiers.items():
            if most is not None and sum(now.get(place, 0) for place in places) > most:
                msg = f"tensors take more than {size(most)} @ {name}"
                raise DoesNotFitError(msg)

    made = plan(config, target, check)
    if not made.fits:
        raise DoesNotFitError(verdict(made))
    return made


def _tiers(done: DryRun, target: PlannedMachine) -> dict[str, TierPlan]:
    log = done.allocations
    process = {"Python, PyTorch and data": done.process}
    of_disk = log.peaks("disk")
    below = {}
    if any(peak.bytes for peak in of_disk.values()):
        below["disk"] = _tier(of_disk, {}, target.disk)
    if target.device is None:
        return {"RAM": _tier(log.peaks("device", "host", "pages"), process, target.host)} | below
    on_device = log.peaks("device")
    most = max(peak.bytes for peak in on_device.values())
    more = {"fragmentation": log.reserved() - most, "CUDA": CONTEXT}
    return {
        "device": _tier(on_device, more, target.device),
        "RAM": _tier(log.peaks("host", "pages"), process, target.host, "model while it is built"),
    } | below


def _tier(
    peaks: Mapping[str, Peak],
    more: Mapping[str, int],
    has: int | None,
    other: str = "buffers of plugins",
) -> TierPlan:
    worst = max(peaks.values(), key=lambda peak: peak.bytes)
    kinds: dict[str, int] = {}
    for kind, nbytes in worst.kinds.items():
        name = other if kind == OTHER else _KINDS.get(kind, kind)
        kinds[name] = kinds.get(name, 0) + nbytes
    kinds |= more
    return TierPlan(
        moments={during: peak.bytes for during, peak in peaks.items()},
        worst=worst.during,
        kinds=dict(sorted(kinds.items(), key=lambda item: -item[1])),
        needed=sum(kinds.values()),
        has=has,
    )
