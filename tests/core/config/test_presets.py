from __future__ import annotations

import re
import tomllib

import attrs
import pytest

from neaptide.config import RunConfig, load, presets
from neaptide.errors import ConfigError
from neaptide.plugin import PluginSpec


@attrs.frozen(kw_only=True)
class DriftConfig:
    min_window: int = 200


@attrs.frozen(kw_only=True)
class ScheduleConfig:
    name: str = "cosine"
    warmup: float = 0.0
    count_jumps: bool = True


DRIFT = PluginSpec(name="predictor-drift", load="strangers:Drift", config=DriftConfig)
SCHEDULE = PluginSpec(name="lr-schedule", load="strangers:Schedule", config=ScheduleConfig)


def test_presets_are_listed() -> None:
    assert "tiny-cpu" in presets.names()
    assert presets.names() == sorted(presets.names())


@pytest.mark.parametrize("name", presets.names())
def test_every_section_of_a_preset_is_explained(name: str) -> None:
    lines = presets.text(name).splitlines()
    assert lines[0].startswith("# ")
    for before, line in zip(["", *lines], lines, strict=False):
        if re.fullmatch(r"\[[^.]+(\.[^.]+)?\]", line) and line != "[model.options]":
            assert before.startswith("# "), line


@pytest.mark.parametrize("name", presets.names())
def test_presets_say_their_version(name: str) -> None:
    assert tomllib.loads(presets.text(name))["version"] == 1


def test_the_smallest_preset_runs_all_four_phases() -> None:
    config = load(preset="tiny-cpu", specs={one.name: one for one in (DRIFT, SCHEDULE)}).config
    assert isinstance(config, RunConfig)
    phases = config.phases
    lengths = (phases.warmup.steps, phases.full.steps, phases.correct.steps)
    assert lengths == (10, 15, 5)
    assert phases.predict.max_horizon == 10
    assert sum(lengths) < config.train.steps
    assert config.plugins["predictor-drift"].min_window <= sum(lengths[:2])


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("tiny-cp", "unknown preset 'tiny-cp' (did you mean 'tiny-cpu'?)"),
        ("../tiny-cpu", "unknown preset '../tiny-cpu' (did you mean 'tiny-cpu'?)"),
        ("zzz", f"unknown preset 'zzz' (known: {', '.join(presets.names())})"),
    ],
)
def test_an_unknown_preset_is_refused(name: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        presets.text(name)
    assert caught.value.problems == (line,)
