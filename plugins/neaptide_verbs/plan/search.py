"""The changes of a configuration with which it fits: what plugins offer, alone and together."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.config import unstructure
from neaptide.config.tables import leaves, overlay
from neaptide.config.values import dotted
from neaptide.errors import NeaptideError
from neaptide.hooks.enabling import configured
from neaptide.hooks.registry import installed_plugins

from .planning import plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from neaptide.config import RunConfig
    from neaptide.plugin import PluginSpec

    from .machine import PlannedMachine
    from .planning import Plan

TOGETHER = 3
"""The most plugins that are changed at once."""
MOST = 24
"""The most configurations that are planned."""
_RANK = {"exact": 0, "tolerance": 1, "changes-training": 2}


@attrs.frozen(kw_only=True)
class Remedy:
    """A changed configuration that fits.

    Attributes:
        settings: what is changed, as tables.
        numerics: `exact` if no bit of the weights changes; else `tolerance` or `changes-training`.
    """

    settings: Mapping[str, Any]
    numerics: str
    config: RunConfig
    plan: Plan

    def __str__(self) -> str:
        """Return the settings in one line, each as `--set` takes it."""
        return ", ".join(_written(self.settings))


@attrs.frozen(kw_only=True)
class Searched:
    """What a search found: the best first, and how many configurations it planned."""

    remedies: tuple[Remedy, ...]
    tried: int
    left: bool
    """True if the search ended before it had tried everything."""


def search(config: RunConfig, machine: PlannedMachine) -> Searched:
    """Return changes of `config` with which it fits, from the `search_space` of plugins.

    Single changes are tried first, then two and three together, until some fit. The best has the
    fewest effects on the numbers, then the most tokens a second, then the fewest settings.
    """
    found: list[Remedy] = []
    tried = 0
    for together in range(1, TOGETHER + 1):
        for settings, numerics, changed in _candidates(config, together):
            if tried == MOST:
                return Searched(remedies=_best(found), tried=tried, left=True)
            tried += 1
            try:
                made = plan(changed, machine)
            except NeaptideError:
                continue  # it cannot run, or does not fit
            if made.fits:
                found.append(
                    Remedy(settings=settings, numerics=numerics, config=changed, plan=made)
                )
        if found:
            break
    return Searched(remedies=_best(found), tried=tried, left=False)


def _candidates(
    config: RunConfig, together: int
) -> Iterator[tuple[dict[str, Any], str, RunConfig]]:
    """Yield changed settings, their effect on the numbers, and the configuration with them."""
    before = unstructure(config)
    offers = [
        (spec, settings)
        for spec in installed_plugins().usable().values()
        for settings in spec.search_space
    ]
    for chosen in combinations(offers, together):
        specs = [spec for spec, _ in chosen]
        if len({spec.name for spec in specs}) < together:
            continue
        changes: dict[str, Any] = {}
        for _, settings in chosen:
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


def _written(settings: Mapping[str, Any]) -> Iterator[str]:
    for path in leaves(settings):
        value: Any = settings
        for key in path:
            value = value[key]
        yield dotted(path) if value == {} else f"{dotted(path)} = {value!r}"
