"""Plans a configuration: a dry run, its peaks on each tier, and what the machine has."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import attrs

from neaptide.errors import ConfigError, DoesNotFitError, NeaptideError
from neaptide.io.units import size
from neaptide_toolkit.dry_run.allocations import OTHER, no_limit
from neaptide_toolkit.dry_run.running import dry_run
from neaptide_toolkit.machine.pretended import with_ram

from .machine import CONTEXT
from .processes import exchanged, of_each_kind, of_one
from .value import Plan, TierPlan, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neaptide.config import RunConfig
    from neaptide_toolkit.dry_run.allocations import Check, Peak, Where
    from neaptide_toolkit.dry_run.clock import Times
    from neaptide_toolkit.dry_run.processes.places import Processes
    from neaptide_toolkit.dry_run.running import DryRun

    from .machine import PlannedMachine
    from .processes import ProcessPlan

_KINDS = {
    "forward": "activations",
    "backward": "temporary",
    "update": "temporary",
    "evaluate": "temporary",
    "predict": "temporary",
}
"""What memory is for, by the moment at which it was allocated, if nothing else is known."""


_BUFFERS, _UNDIVIDED = "buffers of plugins", "buffers, undivided model"
"""What all other memory of a device is for, in one process and in several."""


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
    found, host = [], first.host
    kinds: list[Processes | None] = [None]
    if first.processes is not None:
        on_a_cpu, kinds = first.device is None, [*of_each_kind(config, first.processes)]
        rates = [of_one(one, first.processes, on_a_cpu=on_a_cpu) for one in rates]
        host = None if host is None else host // first.processes.on_a_node
    for processes in kinds:
        with with_ram(host):
            done = dry_run(config, rates, first.kind, check, processes)
        times = done.times or (None,)
        found.append(
            [
                _plan(done, place, *each)
                for place, each in enumerate(zip(targets, times, strict=True))
            ]
        )
    return [*map(_worst, *found)]


def _worst(plan: Plan, *others: Plan) -> Plan:
    """Return the plan of the process that needs most, with the time of the slowest."""

    def needs(one: Plan) -> list[tuple[int, int]]:  # an allocator may take as much for less
        return [(tier.needed, max(tier.moments.values())) for tier in one.tiers.values()]

    every = (plan, *others)
    most = max(every, key=needs)
    slowest = max(every, key=lambda one: one.seconds_per_step or 0.0)
    timed = ("seconds_per_step", "tokens_per_second", "bound_by", "busy")
    return attrs.evolve(most, **{name: getattr(slowest, name) for name in timed})


def _plan(done: DryRun, place: int, target: PlannedMachine, spent: Times | None) -> Plan:
    seconds, busy = (None, {}) if spent is None else (spent.seconds, spent.busy)
    tokens = done.tokens / seconds if seconds and done.tokens is not None else None
    return Plan(
        machine=target.name,
        tiers=_tiers(done, target, place),
        seconds_per_step=seconds,
        tokens_per_second=tokens,
        bound_by=max(busy, key=lambda engine: busy[engine], default=None),
        busy=busy,
        disk_written=done.written,
        assumptions=done.assumptions,
        processes=_exchanged(done, target, spent),
    )


def _exchanged(done: DryRun, target: PlannedMachine, spent: Times | None) -> ProcessPlan | None:
    if target.processes is None:
        return None
    holds = _named(done.allocations.most("device"), _UNDIVIDED)
    peer = None if target.rates is None or target.device is None else target.rates.peer
    return exchanged(target.processes, done.sent, holds, peer, spent)


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
    shared = 1 if target.processes is None else target.processes.on_a_node
    host, disk = (None if one is None else one // shared for one in (target.host, target.disk))
    tiers: dict[str, tuple[int | None, tuple[Where, ...]]] = {
        "RAM": (host, ("host", "pages")),
        "disk": (disk, ("disk",)),
    }
    if target.device is None:
        tiers["RAM"] = (host, ("device", "host", "pages"))
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


def _tiers(done: DryRun, target: PlannedMachine, place: int) -> dict[str, TierPlan]:
    log = done.allocations
    shared = 1 if target.processes is None else target.processes.on_a_node
    process = {"Python, PyTorch and data": done.process}
    of_disk = log.peaks("disk")
    below = {}
    if any(peak.bytes for peak in of_disk.values()):
        below["disk"] = _tier(of_disk, {}, target.disk, shared=shared)
    if target.device is None:
        in_ram = log.peaks("device", "host", "pages")
        return {"RAM": _tier(in_ram, process, target.host, shared=shared)} | below
    on_device = log.peaks("device")
    most = max(peak.bytes for peak in on_device.values())
    more = {"fragmentation": log.reserved(place) - most, "CUDA": CONTEXT}
    in_ram, other = log.peaks("host", "pages"), "model while it is built"
    whole = _BUFFERS if target.processes is None else _UNDIVIDED
    return {
        "device": _tier(on_device, more, target.device, whole),
        "RAM": _tier(in_ram, process, target.host, other, shared),
    } | below


def _named(kinds: Mapping[str, int], other: str = _BUFFERS) -> dict[str, int]:
    named: dict[str, int] = {}
    for kind, nbytes in kinds.items():
        name = other if kind == OTHER else _KINDS.get(kind, kind)
        named[name] = named.get(name, 0) + nbytes
    return named


def _tier(
    peaks: Mapping[str, Peak],
    more: Mapping[str, int],
    has: int | None,
    other: str = _BUFFERS,
    shared: int = 1,
) -> TierPlan:
    worst = max(peaks.values(), key=lambda peak: peak.bytes)
    kinds = _named(worst.kinds, other)
    kinds |= more
    if shared > 1:
        kinds["other processes"] = (shared - 1) * sum(kinds.values())
    return TierPlan(
        moments={during: peak.bytes for during, peak in peaks.items()},
        worst=worst.during,
        kinds=dict(sorted(kinds.items(), key=lambda item: -item[1])),
        needed=sum(kinds.values()),
        has=has,
    )
