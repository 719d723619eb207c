"""The value that a plan is: what a configuration takes of a machine; and its text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide.config.tables import leaves
from neaptide.config.values import dotted
from neaptide.io.units import duration, size
from neaptide.text import one_line, table
from neaptide_toolkit.machine.wear import told

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from neaptide.config import RunConfig
    from neaptide_toolkit.choosing import PlanChoice

    from .processes import ProcessPlan

SHOWN = 3
_ASSUMPTIONS = 8
"""Assumptions that the text shows."""


@attrs.frozen(kw_only=True, repr=False)
class TierPlan:
    """The use of one tier: `device`, `RAM` or `disk`.

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

    __repr__ = one_line

    @property
    def fits(self) -> bool:
        """Return whether the tier has enough memory, as far as is known."""
        return self.has is None or self.needed <= self.has


@attrs.frozen(kw_only=True, repr=False)
class Remedy:
    """A changed configuration that fits.

    Attributes:
        settings: what is changed, as tables.
        numerics: `exact` if no bit of the weights changes; else `tolerance` or `changes-training`.
        config: the configuration with the changes.
        plan: its plan.
    """

    settings: Mapping[str, Any]
    numerics: str
    config: RunConfig
    plan: Plan

    __repr__ = one_line

    def __str__(self) -> str:
        """Return the settings in one line, each as `--set` takes it."""
        return ", ".join(written(self.settings))


@attrs.frozen(kw_only=True, repr=False)
class Plan:
    """What a configuration takes of a machine. `str` gives the tables of `neaptide plan`.

    Attributes:
        machine: its name.
        tiers: by name: `device`, unless the machine is a CPU, `RAM`, and `disk` if it is used.
        seconds_per_step: a lower bound by the machine's rates; None if they are unknown.
        tokens_per_second: an upper bound; None if the rates or the tokens are unknown.
        bound_by: the engine that is busy longest, such as `to device`; None without rates.
        busy: seconds by engine.
        disk_written: bytes that a step writes to the disk.
        choice: what was chosen where the configuration says `"auto"`; None if it does not.
        changes: if it does not fit, changes with which it does; the best is first.
        changes_tried: how many were planned.
        changes_left: True if some were not planned.
        assumptions: what is taken for granted of values that a plan does not have, and where.
        processes: what several processes exchange; None for one.

    With several processes, the memory of the device and the times are those of one process, and RAM
    is that of all on a machine.
    """

    machine: str
    tiers: Mapping[str, TierPlan]
    seconds_per_step: float | None
    tokens_per_second: float | None
    bound_by: str | None
    busy: Mapping[str, float]
    disk_written: int = 0
    choice: PlanChoice | None = None
    changes: tuple[Remedy, ...] = ()
    changes_tried: int = 0
    changes_left: bool = False
    assumptions: tuple[str, ...] = ()
    processes: ProcessPlan | None = None

    __repr__ = one_line

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Return the bytes that each tier needs."""
        return {name: tier.needed for name, tier in self.tiers.items()}

    @property
    def fits(self) -> bool:
        """Return whether all tiers have enough memory."""
        return all(tier.fits for tier in self.tiers.values())

    def __str__(self) -> str:
        """Return a table for each tier, the speed, the verdict, and the changes that were tried."""
        parts = [f"plan for {self.machine}", _moments(self)]
        parts += [_tier(name, tier) for name, tier in self.tiers.items()]
        if self.assumptions:
            parts.append(assumed(self.assumptions))
        if self.processes is not None:
            parts.append(str(self.processes))
        parts += [speed(self), verdict(self)]
        if self.disk_written:
            parts.append(wear(self))
        if self.choice is not None:
            parts.append(choice(self.choice))
        if self.changes_tried:
            parts.append(changes(self))
        return "\n\n".join(parts)


def assumed(assumptions: tuple[str, ...]) -> str:
    """Return what the plan assumes, one in a line, those that were made first."""
    left = len(assumptions) - _ASSUMPTIONS
    more = (f"and {left} more, see --json",) if left > 0 else ()
    lines = (*assumptions[:_ASSUMPTIONS], *more)
    return "\n  ".join(("the plan may be wrong, because it assumes that", *lines))


def as_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as a tree for JSON."""
    return {
        "fits": plan.fits,
        "verdict": verdict(plan),
        "machine": plan.machine,
        "peak_bytes": plan.peak_bytes,
        "tiers": {name: attrs.asdict(tier) for name, tier in plan.tiers.items()},
        "seconds_per_step": plan.seconds_per_step,
        "tokens_per_second": plan.tokens_per_second,
        "bound_by": plan.bound_by,
        "busy": plan.busy,
        "disk_written": plan.disk_written,
        "assumptions": list(plan.assumptions),
        "processes": None if plan.processes is None else attrs.asdict(plan.processes),
        "choice": None if plan.choice is None else attrs.asdict(plan.choice),
        "changes_tried": plan.changes_tried,
        "changes": [
            {
                "settings": remedy.settings,
                "numerics": remedy.numerics,
                "peak_bytes": remedy.plan.peak_bytes,
                "seconds_per_step": remedy.plan.seconds_per_step,
                "tokens_per_second": remedy.plan.tokens_per_second,
            }
            for remedy in plan.changes
        ],
    }


def choice(made: PlanChoice) -> str:
    """Return what a plan chose, in one line, and what else it tried, one in a line."""
    other = (f"  {_brief(one.settings)}: {one.why}" for one in made.tried)
    head = f"chosen: {', '.join(written(made.settings))}"
    return "\n".join([head, *(["tried, too:"] if made.tried else []), *other])


def _brief(settings: Mapping[str, Any]) -> str:
    tables = settings["plugins"].items()
    return "; ".join(f"{name} {', '.join(written(own))}" for name, own in tables)


def verdict(plan: Plan) -> str:
    """Return one line: what is left of each tier, or what a tier lacks."""
    for name, tier in plan.tiers.items():
        if not tier.fits and tier.has is not None:
            most = ", ".join(f"{kind} {size(held)}" for kind, held in [*tier.kinds.items()][:3])
            return f"does not fit: {needs(name, tier)} ({most})"
    left = [
        f"{size(tier.has - tier.needed)} of {name} left"
        for name, tier in plan.tiers.items()
        if tier.has is not None
    ]
    return ", ".join(["fits", *left])


def needs(name: str, tier: TierPlan) -> str:
    """Return what a tier needs of what it has."""
    named = "the device" if name == "device" else name
    of = "" if tier.has is None else f" of {size(tier.has)}"
    return f"{named} needs {size(tier.needed)}{of}"


def changes(plan: Plan) -> str:
    """Return the three best changes that make the configuration fit, one in a line."""
    tried = f"{plan.changes_tried} changes tried" + (", not all" if plan.changes_left else "")
    if not plan.changes:
        return f"no change that a plugin offers makes it fit ({tried})"
    rows = [
        (f"  {remedy}", verdict(remedy.plan), _speed_beside(plan, remedy.plan), remedy.numerics)
        for remedy in plan.changes[:SHOWN]
    ]
    return f"changes with which it fits ({tried}):\n{table(rows)}"


def _speed_beside(plan: Plan, other: Plan) -> str:
    if plan.seconds_per_step is None or other.seconds_per_step is None:
        return ""
    return f"{plan.seconds_per_step / other.seconds_per_step:.2f} x the speed"


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


def speed(plan: Plan) -> str:
    """Return the least time of an update and what is busy in it, in one line."""
    if plan.seconds_per_step is None:
        return "speed: unknown, because the machine has no profile of rates"
    busy = ", ".join(_busy(plan))
    tokens = plan.tokens_per_second
    rate = "" if tokens is None else f", {tokens:,.0f} tokens/s at most"
    bound = "" if plan.processes is None else f"; {plan.bound_by} binds"
    return f"an update takes at least {duration(plan.seconds_per_step)}{rate}; busy: {busy}{bound}"


def wear(plan: Plan) -> str:
    """Return what a step writes to the disk and, if the time is known, how long a drive lasts."""
    seconds = plan.seconds_per_step
    return told(plan.disk_written, seconds, None if seconds is None else "at most")


def _busy(plan: Plan) -> Iterator[str]:
    assert plan.seconds_per_step is not None
    for engine, seconds in sorted(plan.busy.items(), key=lambda item: -item[1]):
        if seconds >= plan.seconds_per_step / 100:
            yield f"{engine} {duration(seconds)}"


def written(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield each setting as `--set` takes it."""
    for path in leaves(settings):
        value: Any = settings
        for key in path:
            value = value[key]
        yield dotted(path) if value == {} else f"{dotted(path)} = {value!r}"
