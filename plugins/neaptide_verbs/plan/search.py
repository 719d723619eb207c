"""The changes of a configuration with which it fits: what plugins offer, alone and together."""

from __future__ import annotations

import time
from itertools import combinations
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.config import unstructure
from neaptide.config.tables import leaves, overlay
from neaptide.errors import NeaptideError
from neaptide.hooks.enabling import configured
from neaptide.hooks.registry import installed_plugins

from .auto.choosing import chosen, unheard
from .planning import PlanTooLongError, plan_if_fits
from .value import Remedy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neaptide.config import RunConfig
    from neaptide.plugin import PluginSpec

    from .machine import PlannedMachine
    from .value import Plan

TOGETHER = 3
"""The most plugins that are changed at once."""
MOST = 24
"""The most configurations that are planned."""
LONGEST, LEAST = 50.0, 20.0
"""Seconds that a plan and its search take together, and those of the search if the plan is slow."""
_RANK = {"exact": 0, "tolerance": 1, "changes-training": 2}


def searched(config: RunConfig, machine: PlannedMachine) -> Plan:
    """Return the plan of `config`, chosen where it says so; if it does not fit, with changes.

    Raises:
        NeaptideError: the configuration cannot run, or its model needs values.
    """
    start = time.monotonic()
    config, made = chosen(config, machine)
    return made if made.fits else with_changes(made, config, machine, seconds_left(start))


def seconds_left(start: float) -> float:
    """Return the seconds that a search may take if its plan began at `start`."""
    return max(LEAST, LONGEST - (time.monotonic() - start))


def with_changes(
    made: Plan,
    config: RunConfig,
    machine: PlannedMachine,
    seconds: float = LONGEST,
    tell: Callable[[int, dict[str, Any]], None] = lambda *_: None,
) -> Plan:
    """Return a plan with changes of `config` that fit, from the `search_space` of plugins.

    Single changes are tried first, then two and three together, until some fit. The best has the
    fewest effects on the numbers, then the most tokens a second, then the fewest settings. Those
    that change no bit are tried first, because the search ends after `seconds`.
    `tell(number, settings)` is called before each change.
    """
    found: list[Remedy] = []
    tried = 0
    end = time.monotonic() + seconds
    left = False
    for together in range(1, TOGETHER + 1):
        for settings, numerics, changed in _candidates(config, together):
            if tried == MOST or time.monotonic() > end:
                left = True
                break
            tried += 1
            tell(tried, settings)
            try:
                with unheard():  # each would log what the first plan has logged
                    other = plan_if_fits(changed, machine, end)
            except PlanTooLongError:
                tried, left = tried - 1, True
                break
            except NeaptideError:
                continue  # it cannot run, or does not fit
            found.append(Remedy(settings=settings, numerics=numerics, config=changed, plan=other))
        if found or left:
            break
    return attrs.evolve(made, changes=_best(found), changes_tried=tried, changes_left=left)


def _candidates(
    config: RunConfig, together: int
) -> Iterator[tuple[dict[str, Any], str, RunConfig]]:
    """Yield changed settings, their effect on the numbers, and the configuration with them."""
    before = unstructure(config)
    offers = [
        (spec, settings)
        for spec in sorted(
            installed_plugins().usable().values(), key=lambda spec: _RANK[spec.numerics]
        )
        for settings in spec.search_space
    ]
    for taken in combinations(offers, together):
        specs = [spec for spec, _ in taken]
        if len({spec.name for spec in specs}) < together:
            continue
        changes: dict[str, Any] = {}
        for _, settings in taken:
            changes = overlay(changes, settings)
        try:
            changed, _ = configured(overlay(before, changes))
        except NeaptideError:
            continue  # the plugins conflict
        if changed != config:
            yield changes, _numerics(specs), changed


def _numerics(specs: Sequence[PluginSpec]) -> str:
    return max((spec.numerics for spec in specs), key=_RANK.__getitem__)


def _best(found: Sequence[Remedy]) -> tuple[Remedy, ...]:
    def order(remedy: Remedy) -> tuple[int, float, int]:
        speed = remedy.plan.tokens_per_second or 0.0
        return _RANK[remedy.numerics], -speed, len([*leaves(remedy.settings)])

    return tuple(sorted(found, key=order))
