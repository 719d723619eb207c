"""Several cards beside each other: which of them fit, and how fast each can be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neaptide.errors import ConfigError
from neaptide.io.units import duration, size
from neaptide.text import table
from neaptide_toolkit.machine import profiles

from .value import needs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .machine import PlannedMachine
    from .value import Plan, TierPlan

ALL = "all"
_HEAD = ("card", "has", "needs", "", "an update", "tokens/s at most", "bound by")


def several(device: str | None) -> list[str]:
    """Return the profiles that `--device` names if they are several: `all`, or `a,b`.

    Raises:
        ConfigError: one of them is no profile.
    """
    if device is None or (device != ALL and "," not in device):
        return []
    names = list(profiles.names()) if device == ALL else [one.strip() for one in device.split(",")]
    for name in names:
        try:
            profiles.path_of(name)
        except ConfigError as error:
            msg = f"several devices are profiles, such as rtx3090,rtx4090: {error} @ --device"
            raise ConfigError(msg) from None
    return names


def beside(machines: Sequence[PlannedMachine], plans: Sequence[Plan]) -> str:
    """Return a table of several cards, the smallest first, and what else than a card is needed."""
    pairs = sorted(
        zip(machines, plans, strict=True),
        key=lambda pair: (pair[0].device or 0, -(pair[1].tokens_per_second or 0.0)),
    )
    rows = [_HEAD, *(_row(machine, plan) for machine, plan in pairs)]
    others = [_shared(name, tier) for name, tier in plans[0].tiers.items() if name != "device"]
    return "\n".join([table(rows), "", *others])


def _row(machine: PlannedMachine, plan: Plan) -> tuple[str, ...]:
    tier = plan.tiers["device"]
    assert plan.seconds_per_step is not None
    tokens = plan.tokens_per_second
    return (
        machine.name,
        size(machine.device or 0),
        size(tier.needed),
        "fits" if tier.fits else "does not fit",
        duration(plan.seconds_per_step),
        "" if tokens is None else f"{tokens:,.0f}",
        plan.bound_by or "",
    )


def _shared(name: str, tier: TierPlan) -> str:
    return f"{needs(name, tier)}: {'fits' if tier.fits else 'does not fit'}"
