"""A plan as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide.io.units import duration, size
from neaptide.text import table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .planning import Plan, TierPlan
    from .search import Searched

SHOWN = 3


def of(plan: Plan) -> str:
    """Return a table for each tier, the speed, and the verdict."""
    parts = [f"plan for {plan.machine}", _moments(plan)]
    parts += [_tier(name, tier) for name, tier in plan.tiers.items()]
    parts += [_speed(plan), verdict(plan)]
    return "\n\n".join(parts)


def as_json(plan: Plan, found: Searched | None) -> dict[str, Any]:
    """Return the plan as a tree for JSON. `found` is None if the configuration fits."""
    remedies = () if found is None else found.remedies
    return {
        **attrs.asdict(plan),
        "fits": plan.fits,
        "peak_bytes": plan.peak_bytes,
        "verdict": verdict(plan),
        "changes_tried": 0 if found is None else found.tried,
        "changes": [
            {
                "settings": remedy.settings,
                "numerics": remedy.numerics,
                "peak_bytes": remedy.plan.peak_bytes,
                "seconds_per_step": remedy.plan.seconds_per_step,
                "tokens_per_second": remedy.plan.tokens_per_second,
            }
            for remedy in remedies
        ],
    }


def verdict(plan: Plan) -> str:
    """Return one line: what is left of each tier, or what a tier lacks."""
    for name, tier in plan.tiers.items():
        if not tier.fits and tier.has is not None:
            needed, has = size(tier.needed), size(tier.has)
            most = ", ".join(f"{kind} {size(held)}" for kind, held in [*tier.kinds.items()][:3])
            return f"does not fit: {_named(name)} needs {needed} of {has} ({most})"
    left = [
        f"{size(tier.has - tier.needed)} of {name} left"
        for name, tier in plan.tiers.items()
        if tier.has is not None
    ]
    return ", ".join(["fits", *left])


def changes(plan: Plan, found: Searched) -> str:
    """Return the three best changes that make the configuration fit, one in a line."""
    tried = f"{found.tried} changes tried" + (", not all" if found.left else "")
    if not found.remedies:
        return f"no change that a plugin offers makes it fit ({tried})"
    rows = [
        (f"  {remedy}", verdict(remedy.plan), _speed_beside(plan, remedy.plan), remedy.numerics)
        for remedy in found.remedies[:SHOWN]
    ]
    return f"changes with which it fits ({tried}):\n{table(rows)}"


def _speed_beside(plan: Plan, other: Plan) -> str:
    if plan.seconds_per_step is None or other.seconds_per_step is None:
        return ""
    return f"{plan.seconds_per_step / other.seconds_per_step:.2f} x the speed"


def _named(tier: str) -> str:
    return "the device" if tier == "device" else tier


def _moments(plan: Plan) -> str:
    names = [*plan.tiers]
    moments = dict.fromkeys(during for tier in plan.tiers.values() for during in tier.moments)
    rows = [("", *names)]
    for during in moments:
        held = [plan.tiers[name].moments.get(during) for name in names]
        rows.append((during, *("" if one is None else size(one) for one in held)))
    return table(rows)


def _tier(name: str, tier: TierPlan) -> str:
    rows = [(kind, size(held)) for kind, held in tier.kinds.items() if held >= tier.needed / 1000]
    return f"{name} at its peak, in {tier.worst}\n{table([*rows, ('needed', size(tier.needed))])}"


def _speed(plan: Plan) -> str:
    if plan.seconds_per_step is None:
        return "speed: unknown, because the machine has no profile of rates"
    busy = ", ".join(_busy(plan))
    tokens = plan.tokens_per_second
    rate = "" if tokens is None else f", {tokens:,.0f} tokens/s at most"
    return f"an update takes at least {duration(plan.seconds_per_step)}{rate}; busy: {busy}"


def _busy(plan: Plan) -> Iterator[str]:
    assert plan.seconds_per_step is not None
    for engine, seconds in sorted(plan.busy.items(), key=lambda item: -item[1]):
        if seconds >= plan.seconds_per_step / 100:
            yield f"{engine} {duration(seconds)}"
