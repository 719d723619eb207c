"""Several cards beside each other: which of them fit, and how fast each can be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neaptide.errors import ConfigError
from neaptide.io.units import duration, size
from neaptide.text import table
from neaptide_toolkit.machine import profiles

from .value import assumed, needs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .machine import PlannedMachine
    from .value import Plan

ALL = "all"
_HEAD = ("card", "has", "needs", "", "an update", "tokens/s at most", "bound by", "rates")


def several(device: str | None) -> list[str]:
    """Return the profiles that `--device` names if they are several: `all`, or `a,b`.

    Raises:
        ConfigError: one of them is no profile.
    """
    if device is None or (device != ALL and "," not in device):
        return []
    words = profiles.names() if device == ALL else map(str.strip, device.split(","))
    names = list(dict.fromkeys(words))
    for name in names:
        try:
            profiles.path_of(name)
        except ConfigError as error:
            msg = f"several devices are shipped profiles, as in rtx3090,rtx4090: {error} @ --device"
            raise ConfigError(msg) from None
    return names


def beside(names: Sequence[str], machines: Sequence[PlannedMachine], plans: Sequence[Plan]) -> str:
    """Return a table of several cards, the smallest first, and what else than a card is needed."""
    triples = sorted(
        zip(names, machines, plans, strict=True),
        key=lambda each: (each[1].device or 0, -(each[2].tokens_per_second or 0.0)),
    )
    rows = [_HEAD, *(_row(*each) for each in triples)]
    return "\n".join([table(rows), "", *_below(plans)])


def _row(name: str, machine: PlannedMachine, plan: Plan) -> tuple[str, ...]:
    tokens, lacking = plan.tokens_per_second, [k for k, tier in plan.tiers.items() if not tier.fits]
    measured = profiles.load(name).sources["flops_half"].startswith("measured")
    return (
        machine.name,
        size(machine.device or 0),
        size(plan.tiers["device"].needed),
        "fits" if not lacking else "too small" if "device" in lacking else f"no: {lacking[0]}",
        "" if plan.seconds_per_step is None else duration(plan.seconds_per_step),
        "" if tokens is None else f"{tokens:,.0f}",
        plan.bound_by or "",
        "measured" if measured else "data sheet",
    )


def _below(plans: Sequence[Plan]) -> Iterator[str]:
    first = plans[0]
    for name, tier in first.tiers.items():
        if name != "device":
            yield f"{needs(name, tier)}: {'fits' if tier.fits else 'does not fit'}"
    if first.disk_written:
        yield f"an update writes {size(first.disk_written)} to the disk"
    if first.processes is not None:
        sends = ", ".join(f"{name} {size(sent)}" for name, sent in first.processes.sent.items())
        yield f"in a step, one of {first.processes.count} processes sends: {sends}"
    if first.assumptions:
        yield assumed(first.assumptions)
    if not any(plan.fits for plan in plans):
        yield "no card is enough; with one --device, changes are tried with which it fits"
