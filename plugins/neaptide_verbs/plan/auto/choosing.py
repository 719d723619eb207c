"""Chooses what a configuration leaves to the plan, so that it fits the machine with a margin.

A choice depends on nothing but the configuration and the machine: no time ends it.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.config import unstructure
from neaptide.config.tables import overlay
from neaptide.errors import ConfigError, DoesNotFitError, NeaptideError
from neaptide.hooks.enabling import configured
from neaptide.io.logging import CONSOLE
from neaptide_toolkit.choosing import Choosable, PlanChoice, Tried
from neaptide_verbs.plan.machine import CONTEXT
from neaptide_verbs.plan.planning import plan, plan_if_fits

from .rungs import largest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from neaptide.config import RunConfig
    from neaptide_verbs.plan.machine import PlannedMachine
    from neaptide_verbs.plan.value import Plan

    Settings = Mapping[str, Any]
    Tell = Callable[[int, Settings], None]

MARGIN = 0.04
"""Share of the device that a choice leaves free: plans are within 4 % of what was measured."""
_MOST = 4096
"""The largest number to which a setting is raised."""


def asks(config: RunConfig) -> bool:
    """Return whether a configuration leaves settings to the plan."""
    return any(settings.choices() for settings in _choosable(config).values())


def chosen(
    config: RunConfig, machine: PlannedMachine, tell: Tell = lambda *_: None
) -> tuple[RunConfig, Plan]:
    """Return the configuration with what the plan chooses, and its plan.

    The first choice that fits is taken, and then filled; if none fits, the last one that can run.
    Without a setting to choose, the configuration stays as it is.

    Args:
        config: of the run.
        machine: on which it runs.
        tell: called with a number and settings before each further plan.

    Raises:
        ConfigError: no choice can run.
        NeaptideError: as `plan`.
    """
    if not asks(config):
        return config, plan(config, machine)
    return _Search(config, machine, tell).chosen()


def _choosable(config: RunConfig) -> dict[str, Choosable]:
    return {
        name: settings
        for name, settings in config.plugins.items()
        if isinstance(settings, Choosable)
    }


def _offers(config: RunConfig) -> Iterator[dict[str, Any]]:
    """Yield tables of settings, the first choice first."""
    every = {name: one.choices() for name, one in _choosable(config).items() if one.choices()}
    filled = {name: one.filled() for name, one in _choosable(config).items() if name in every}
    for chosen in product(*every.values()):
        yield {
            "plugins": {
                name: {**settings, **({raised: 0} if (raised := filled[name]) else {})}
                for name, settings in zip(every, chosen, strict=True)
            }
        }


class _Search:
    """The search for a choice."""

    def __init__(self, config: RunConfig, machine: PlannedMachine, tell: Tell) -> None:
        self._config, self._machine, self._tell = config, machine, tell
        self._before = unstructure(config)
        device = machine.device
        capped = None if device is None else int(device * (1 - MARGIN))
        self._capped = attrs.evolve(machine, device=capped)
        self._tried: list[Tried] = []

    def chosen(self) -> tuple[RunConfig, Plan]:
        last: Settings | None = None
        offers = [*_offers(self._config)]
        if self._capped.device is not None and self._capped.device <= CONTEXT:
            last = offers.pop()  # CUDA takes all that there is
            offers.clear()
        for settings in offers:
            found = self._try(settings)
            if found is not None:
                full, found = self._filled(settings, found)
                return self._with(full), self._told(full, found)
            if self._tried[-1].can_run:
                last = settings
        if last is None:
            first = self._tried[0]
            msg = f"nothing that a plan can choose runs: {first.why} @ {' '.join(_names(first))}"
            same = all(one.why == first.why for one in self._tried)
            raise ConfigError(first.why if same else msg)  # the same: it is not about the choice
        self._tried = [one for one in self._tried if one.settings != last]
        config = self._with(last)
        with unheard():
            return config, self._told(last, plan(config, self._machine))

    def _with(self, settings: Settings) -> RunConfig:
        return configured(overlay(self._before, dict(settings)))[0]

    def _try(self, settings: Settings) -> Plan | None:
        """Return the plan of a choice; None if it does not fit, or cannot run."""
        self._tell(len(self._tried) + 1, settings)
        try:
            with unheard():  # each would log what the first plan has logged
                return plan_if_fits(self._with(settings), self._capped)
        except DoesNotFitError as error:
            self._tried.append(Tried(settings=settings, why=_line(error), can_run=True))
        except NeaptideError as error:
            self._tried.append(Tried(settings=settings, why=_line(error), can_run=False))
        return None

    def _filled(self, settings: Settings, found: Plan) -> tuple[Settings, Plan]:
        """Return a choice that takes as much of the device as there is, and its plan."""
        device = found.tiers.get("device")
        for name, one in _choosable(self._config).items():
            raised = one.filled() if name in settings["plugins"] else None
            if raised is None or device is None:
                continue
            before = {0: found}
            self._fill(settings, (name, raised), before)
            most = max(before)
            settings, found = _set(settings, name, raised, most), before[most]
        return settings, found

    def _fill(self, settings: Settings, path: tuple[str, str], fits: dict[int, Plan]) -> None:
        """Plan larger numbers of a setting; add those that fit to `fits`."""
        known: dict[int, bool] = {0: True}

        def does(number: int) -> bool:
            if number not in known:
                made = self._try(_set(settings, *path, number))
                known[number] = made is not None
                if made is not None:
                    fits[number] = made
                elif not self._tried[-1].can_run:
                    self._tried.pop()  # there are not so many blocks, or the like
            return known[number]

        if does(1):
            first, second = (fits[one].peak_bytes["device"] for one in (0, 1))
            room = (self._capped.device or 0) - first
            largest(_MOST, does, int(room // max(1, second - first)), low=1)

    def _told(self, settings: Settings, found: Plan) -> Plan:
        tiers = dict(found.tiers)
        if "device" in tiers:
            tiers["device"] = attrs.evolve(tiers["device"], has=self._machine.device)
        choice = PlanChoice(settings=settings, tried=tuple(self._tried))
        return attrs.evolve(found, tiers=tiers, choice=choice)


def _set(settings: Settings, name: str, setting: str, value: int) -> dict[str, Any]:
    return overlay(dict(settings), {"plugins": {name: {setting: value}}})


def _names(tried: Tried) -> Iterator[str]:
    for name in tried.settings["plugins"]:
        yield f"plugins.{name}"


def _line(error: NeaptideError) -> str:
    return str(error).splitlines()[0]


@contextmanager
def unheard() -> Iterator[None]:
    """Within this context nothing is logged on the console."""
    before, CONSOLE.disabled = CONSOLE.disabled, True
    try:
        yield
    finally:
        CONSOLE.disabled = before
