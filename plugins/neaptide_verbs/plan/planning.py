"""Plans a configuration: a dry run, its peaks on each tier, and what the machine has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide_toolkit.dry_run.allocations import OTHER
from neaptide_toolkit.dry_run.running import dry_run

from .machine import CONTEXT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neaptide.config import RunConfig
    from neaptide_toolkit.dry_run.allocations import Peak
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


@attrs.frozen(kw_only=True)
class TierPlan:
    """The use of one tier: `device` or `RAM`.

    Attributes:
        moments: bytes of tensors by phase and moment, such as `full backward`.
        kinds: bytes at the peak, by what they are for.
        needed: bytes at the peak, with what is no tensor.
        has: bytes of the tier; None if unknown.
    """

    moments: Mapping[str, int]
    worst: str
    kinds: Mapping[str, int]
    needed: int
    has: int | None

    @property
    def fits(self) -> bool:
        """Return whether the tier has enough memory, as far as is known."""
        return self.has is None or self.needed <= self.has


@attrs.frozen(kw_only=True)
class Plan:
    """What a configuration takes of a machine.

    Attributes:
        tiers: by name: `device`, unless the machine is a CPU, and `RAM`.
        seconds_per_step: a lower bound by the machine's rates; None if they are unknown.
        bound_by: the engine that is busy longest, such as `compute` or `to device`.
        busy: seconds by engine.
    """

    machine: str
    tiers: Mapping[str, TierPlan]
    seconds_per_step: float | None
    tokens_per_second: float | None
    bound_by: str | None
    busy: Mapping[str, float]

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Return the bytes that each tier needs."""
        return {name: tier.needed for name, tier in self.tiers.items()}

    @property
    def fits(self) -> bool:
        """Return whether all tiers have enough memory."""
        return all(tier.fits for tier in self.tiers.values())


def plan(config: RunConfig, target: PlannedMachine) -> Plan:
    """Return the plan of `config` on a machine. No tensor's values are computed.

    Raises:
        NeaptideError: the configuration cannot run, or its model needs values.
    """
    done = dry_run(config, target.rates, target.kind)
    seconds = done.seconds
    tokens = None if seconds is None or done.tokens is None else done.tokens / seconds
    return Plan(
        machine=target.name,
        tiers=_tiers(done, target),
        seconds_per_step=seconds,
        tokens_per_second=tokens,
        bound_by=max(done.busy, key=lambda engine: done.busy[engine], default=None),
        busy=done.busy,
    )


def _tiers(done: DryRun, target: PlannedMachine) -> dict[str, TierPlan]:
    log = done.allocations
    process = {"Python, PyTorch and data": done.process}
    if target.device is None:
        return {"RAM": _tier(log.peaks("device", "host", "pages"), process, target.host)}
    on_device = log.peaks("device")
    most = max(peak.bytes for peak in on_device.values())
    more = {"fragmentation": log.reserved() - most, "CUDA": CONTEXT}
    return {
        "device": _tier(on_device, more, target.device),
        "RAM": _tier(log.peaks("host", "pages"), process, target.host, "model while it is built"),
    }


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
