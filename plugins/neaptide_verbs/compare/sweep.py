"""Tune one side: its learning rate, and for a baseline also initialisation, warmup and decay."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.config.tables import overlay
from neaptide.hooks.enabling import split_name
from neaptide.hooks.registry import installed_plugins

from .schedule import other_decays, other_warmups

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Changes = Mapping[str, Any]
    Ask = Callable[[Sequence[Changes]], Sequence[float]]

LEARNING_RATE, INIT, WARMUP, DECAY = "learning rate", "initialisation", "warmup", "decay"
_FACTOR = 2.0  # ratio of two neighbouring rates of the first grid
_EDGES = 5  # how often the grid may be extended if the best rate is at its edge
_SWEPT = "sweep"
"""Key in a model option's metadata. The value is the factors by which to multiply the option."""
INIT_ARGUMENT = "init_scale"
"""Name of a model factory's argument that is swept. The sweep multiplies the argument by
`INIT_FACTORS`."""
INIT_FACTORS = (0.5, 2.0)


@attrs.frozen
class Tuned:
    """The chosen settings of a side, and all settings that were tried."""

    changes: Mapping[str, Any]
    """Changes to the side's configuration that gave the lowest loss."""
    swept: tuple[str, ...]
    tried: tuple[tuple[Mapping[str, Any], float], ...]
    """Each tried setting with its validation loss, in the order of trials."""


def tune(values: Mapping[str, Any], knobs: Sequence[str], ask: Ask) -> Tuned:
    """Tune the settings `knobs` one after the other. Return the best values.

    Each knob is tuned with the best values of the earlier knobs. `ask` trains once with each of
    several changes and returns the losses; the loss of a diverged run is inf. The learning rate is
    tried at 0.5, 1 and 2 times its value. While the best rate is at the edge of the tried rates,
    the grid is extended. Then sqrt(2) times and 1 / sqrt(2) times the best rate are tried. If
    another knob changed, the rate is tuned again.
    """
    tried: list[tuple[Changes, float]] = []

    def measured(options: Sequence[Changes]) -> list[float]:
        known = [changes for changes, _ in tried]
        fresh = [changes for changes in options if changes not in known]
        tried.extend(zip(fresh, ask(fresh) if fresh else (), strict=True))
        return [_loss_of(changes, tried) for changes in options]

    best: Changes = {}
    swept: list[str] = []
    if LEARNING_RATE in knobs:
        best = _rate(values, best, measured)
        swept.append(LEARNING_RATE)
    for knob in knobs:
        options = alternatives(knob, overlay(dict(values), dict(best)))
        if options:
            changed = [overlay(dict(best), dict(option)) for option in options]
            best = [best, *changed][_least(measured([best, *changed]))]
            swept.append(knob)
    if LEARNING_RATE in knobs and set(best) - set(_with_rate(1.0)):
        # Other sides tune their rates with these settings, so the baseline must do so, too.
        best = _rate(values, best, measured)
    return Tuned(best, tuple(swept), tuple(tried))


def alternatives(knob: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the values to try instead of the present setting of `knob`.

    There are none if `knob` has no effect.
    """
    if knob == WARMUP:
        return other_warmups(values)
    if knob == DECAY:
        return other_decays(values)
    if knob == INIT:
        return [
            {"model": {"options": {name: now * factor}}}
            for name, now, factors in _scalable(values)
            for factor in factors
        ]
    return []


def _scalable(values: Mapping[str, Any]) -> list[tuple[str, float, Sequence[float]]]:
    """Return the name, the current value and the factors of each model option to sweep.

    For a plugin's model, these are the options whose metadata have the key `sweep`. For a factory,
    this is the argument `init_scale`.
    """
    scheme, name = split_name(values["model"]["name"])
    if not scheme:
        return _of_factory(values["model"])
    spec = installed_plugins().for_scheme(f"model:{scheme}", "model.name")
    options = spec.options.get(f"model:{name}", spec.options.get("model:*"))
    if options is None:
        return []
    given = values["model"]["options"]
    return [
        (field.name, given.get(field.name, field.default), field.metadata[_SWEPT])
        for field in attrs.fields(options)
        if _SWEPT in field.metadata
    ]


def _of_factory(model: Mapping[str, Any]) -> list[tuple[str, float, Sequence[float]]]:
    # This imports the user's code, and most likely torch.
    from neaptide.run.defaults import import_factory  # noqa: PLC0415

    factory = import_factory(model["name"], model["options"], "model.name")
    taken = inspect.signature(factory).parameters.get(INIT_ARGUMENT)
    now = model["options"].get(INIT_ARGUMENT, taken.default if taken else None)
    return [(INIT_ARGUMENT, now, INIT_FACTORS)] if isinstance(now, int | float) else []


def _rate(values: Mapping[str, Any], changes: Changes, measured: Ask) -> Changes:
    """Return `changes` together with the best learning rate."""
    centre = overlay(dict(values), dict(changes))["optimizer"]["lr"]
    losses: dict[float, float] = {}

    def with_rate(rate: float) -> Changes:
        return overlay(dict(changes), _with_rate(rate))

    def try_rates(rates: Sequence[float]) -> None:
        losses.update(zip(rates, measured([with_rate(rate) for rate in rates]), strict=True))

    try_rates([centre / _FACTOR, centre, centre * _FACTOR])
    for _ in range(_EDGES):
        best, ordered = _best_rate(losses), sorted(losses)
        if best not in {ordered[0], ordered[-1]}:
            break
        try_rates([best / _FACTOR if best == ordered[0] else best * _FACTOR])
    best = _best_rate(losses)
    try_rates([best / math.sqrt(_FACTOR), best * math.sqrt(_FACTOR)])
    return with_rate(_best_rate(losses))


def _best_rate(losses: Mapping[float, float]) -> float:
    """Return the rate with the lowest loss, or the lowest rate if all runs diverged."""
    return min(losses, key=lambda rate: (losses[rate], rate))


def _with_rate(rate: float) -> dict[str, Any]:
    return {"optimizer": {"lr": float(f"{rate:.4g}")}}


def _loss_of(changes: Changes, tried: Sequence[tuple[Changes, float]]) -> float:
    return next(loss for known, loss in reversed(tried) if known == changes)


def _least(losses: Sequence[float]) -> int:
    return min(range(len(losses)), key=losses.__getitem__)
