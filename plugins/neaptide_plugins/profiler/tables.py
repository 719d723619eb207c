"""The tables at the end of a run, as text and as CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from .statistics import Account, PhaseBytes

_MIB = 2**20
WHOLE_PHASE = "all"
"""Entry in the column `moment` of a row for all moments of a phase together."""


def render(
    account: Account,
    capacities: Mapping[str, int],
    notes: Iterable[str],
    written: Iterable[str] = (),
) -> str:
    """Return the table of a run, in MiB. `capacities` has the capacity of each tier in bytes.

    `notes` are lines of text put before the table. `written` are names of other files, listed after
    the table.
    """
    lines = [
        *notes,
        f"{'tier':<8}{'initial':>10}{'final':>10}{'peak':>10}{'capacity':>12}{'used':>8}  MiB",
    ]
    for tier, course in account.courses.items():
        counts = "".join(f"{_mib(n):>10}" for n in (course.initial, course.final, course.peak))
        capacity = capacities[tier]
        lines.append(f"{tier:<8}{counts}{_mib(capacity):>12}{course.peak / capacity:>8.1%}")
    head = f"{'samples':>8}{'mean':>10}{'max':>10}{'min':>10}{'peak':>10}"
    lines.append(f"{'tier':<8}{'phase':<9}{'moment':<10}{head}  MiB")
    for tier, phase, moment, held in _held(account):
        of = held.samples
        cells = "".join(f"{_mib(n):>10}" for n in (of.mean, of.most, of.least, held.peak))
        lines.append(f"{tier:<8}{phase:<9}{moment:<10}{of.count:>8}{cells}")
    lines += map(str, account.spikes)
    more = account.spike_count - len(account.spikes)
    if more:
        lines.append(f"and {more} smaller spikes")
    return "\n".join([*lines, *written])


def phases_csv(account: Account) -> str:
    """Return mean, max, min and peak in bytes, with a row for each phase and each moment."""
    lines = ["tier,phase,moment,samples,mean_bytes,max_bytes,min_bytes,peak_bytes"]
    for tier, phase, moment, held in _held(account):
        of = held.samples
        numbers = (of.count, round(of.mean), of.most, of.least, held.peak)
        lines.append(",".join([tier, phase, moment, *map(str, numbers)]))
    return "\n".join(lines) + "\n"


def tiers_csv(account: Account, capacities: Mapping[str, int]) -> str:
    """Return initial, final and peak bytes, capacity and utilization, with a row per tier."""
    lines = ["tier,initial_bytes,final_bytes,peak_bytes,capacity_bytes,utilization"]
    for tier, course in account.courses.items():
        numbers = (course.initial, course.final, course.peak, capacities[tier])
        share = course.peak / capacities[tier]
        lines.append(",".join([tier, *map(str, numbers), f"{share:.6f}"]))
    return "\n".join(lines) + "\n"


def _held(account: Account) -> Iterator[tuple[str, str, str, PhaseBytes]]:
    """Yield tier, phase, moment and statistics. A whole phase is yielded before its moments."""
    for (tier, phase), whole in account.phases().items():
        yield tier, phase, WHOLE_PHASE, whole
        for (of, within, moment), held in account.moments.items():
            if (of, within) == (tier, phase):
                yield tier, phase, moment, held


def _mib(nbytes: float) -> str:
    return f"{nbytes / _MIB:.1f}"
