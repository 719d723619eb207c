"""The configurations to compare, with and without prediction.

A plugin claims roles in its manifest. These claims show whether the plugin predicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide.config import structure, unstructure
from neaptide.config.tables import overlay
from neaptide.errors import ConfigError
from neaptide.hooks.enabling import DYNAMICS, PREDICTOR, configured
from neaptide.hooks.registry import installed_plugins

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neaptide.config import RunConfig
    from neaptide.plugin import PluginSpec

BASELINE = "baseline"
CANDIDATE = "candidate"
WITHOUT_JUMPS = "candidate-without-jumps"
WITH_JUMPS = "baseline-with-jumps"

AVERAGING = "evaluation.weights"
"""The claim of plugins that evaluate the average of the weights, or other changed weights."""


@attrs.frozen
class Side:
    """One configuration of the comparison, with its name in the results."""

    name: str
    values: Mapping[str, Any]
    """The side's whole configuration as a nested table."""

    @property
    def predicts(self) -> bool:
        """True if a plugin of the side proposes updates."""
        return any(PREDICTOR in spec.claims for spec in _ordered(self.values))


def sides_of(config: RunConfig, against: RunConfig | None) -> list[Side]:
    """Return the sides to train: the baseline, the candidate and, with `against`, up to two more.

    Without `against`, the baseline is `config` without its predictor, so only the jumps cause the
    candidate's gain. With `against`, the two configurations may also differ in other settings. Then
    two more sides separate the effects: `config` without its predictor, and `against` with the
    predictor of `config`.
    ConfigError if there is nothing to compare, or if the two configurations have different tasks.
    """
    candidate = Side(CANDIDATE, _prepared(config))
    if against is None:
        if not candidate.predicts:
            msg = (
                "nothing to compare: no enabled plugin claims 'predictor'; enable one, or name "
                "the other side with --against FILE @ plugins"
            )
            raise ConfigError(msg)
        return [Side(BASELINE, without_prediction(candidate.values)), candidate]
    baseline = Side(BASELINE, _prepared(against))
    if baseline.values == candidate.values:
        msg = "the two configurations are the same: nothing to compare @ --against"
        raise ConfigError(msg)
    _check_same_task(baseline.values, candidate.values)
    sides = [baseline, candidate]
    if candidate.predicts and not baseline.predicts:
        plain = Side(WITHOUT_JUMPS, without_prediction(candidate.values))
        if not _train_alike(plain.values, baseline.values):
            with_jumps = Side(WITH_JUMPS, with_prediction(baseline.values, candidate.values))
            sides += [plain, with_jumps]
    return sides


def _train_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two sides without prediction differ only in phases that they never enter."""

    def told(values: Mapping[str, Any]) -> dict[str, Any]:
        return {**values, "phases": values["phases"]["warmup"]}

    return told(one) == told(other)


def without_prediction(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration without the plugins that predict updates or forecast losses.

    Plugins that require a removed plugin are removed, too.
    """
    predicting = _predicting(_ordered(values))
    kept = {name: table for name, table in values["plugins"].items() if name not in predicting}
    changed = _without_confidence(values)
    return _checked({**changed, "plugins": kept})


def with_prediction(values: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` with the phases and the predicting and forecasting plugins of `other`."""
    taken = _predicting(_ordered(other))
    tables = {name: table for name, table in other["plugins"].items() if name in taken}
    plugins = {**values["plugins"], **tables}
    return _checked({**values, "plugins": plugins, "phases": other["phases"]})


def _predicting(ordered: Sequence[PluginSpec]) -> set[str]:
    names = {spec.name for spec in ordered if {PREDICTOR, DYNAMICS} & set(spec.claims)}
    provided = {claim for spec in ordered if spec.name not in names for claim in spec.claims}
    provided |= {spec.name for spec in ordered if spec.name not in names}
    while True:
        left = {
            spec.name
            for spec in ordered
            if spec.name not in names and not set(spec.requires) <= provided
        }
        if not left:
            return names
        names |= left
        provided -= left


def _prepared(config: RunConfig) -> dict[str, Any]:
    """Return the full configuration without run directory, display and periodic evaluation.

    If no enabled plugin averages the weights, an installed averaging plugin is added.
    """
    full, ordered = configured(config)
    if not any(AVERAGING in spec.claims for spec in ordered):
        averaging = averaging_plugins()
        if averaging:
            full, _ = configured(full, averaging[:1])
    quiet = {
        "run": {"dir": None, "checkpoint_dir": None, "progress": "quiet"},
        "eval": {"every": 0},
    }
    return _checked(overlay(unstructure(full), quiet))


def averaging_plugins() -> list[str]:
    """Return the installed plugins that evaluate averaged weights and have no other effect."""
    return sorted(
        spec.name
        for spec in installed_plugins().usable().values()
        if AVERAGING in spec.claims and spec.numerics == "exact"
    )


def _without_confidence(values: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the setting `confidence`, which needs a plugin that forecasts losses."""
    phases = {**values["phases"], "predict": {**values["phases"]["predict"]}}
    phases["predict"].pop("confidence", None)
    return {**values, "phases": phases}


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    full, _ = configured(dict(values))
    return unstructure(full)


def _ordered(values: Mapping[str, Any]) -> list[PluginSpec]:
    return configured(structure(dict(values), installed_plugins().usable()))[1]


def _check_same_task(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    for section, keys in (
        ("data", ("name", "options")),
        ("train", ("steps", "batch_size")),
        ("eval", ("batches",)),
    ):
        for key in keys:
            if one[section].get(key) != other[section].get(key):
                msg = (
                    f"both sides must have the same {section}.{key}, or their losses cannot be "
                    f"compared (got {one[section].get(key)!r} and "
                    f"{other[section].get(key)!r}; --set changes CONFIG only) @ --against"
                )
                raise ConfigError(msg)
