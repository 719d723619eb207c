"""The sweep finds the best of a known loss, asks for nothing twice and lives with divergence."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from neaptide.config.tables import overlay
from neaptide_plugins.lr_schedule.config import LrScheduleConfig
from neaptide_verbs.compare.protocol import KNOBS
from neaptide_verbs.compare.sweep import DECAY, INIT, LEARNING_RATE, WARMUP, alternatives, tune

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

VALUES: dict[str, Any] = {
    "model": {"name": "builtin:mlp", "options": {"width": 8}},
    "optimizer": {"name": "adamw", "lr": 1e-3},
    "train": {"steps": 400},
    "plugins": {"lr-schedule": {"name": "linear", "warmup": 10}},
}


class Asked:
    """Answers with `loss` of the whole configuration, and remembers what it was asked."""

    def __init__(self, loss: Callable[[Mapping[str, Any]], float]) -> None:
        self.loss = loss
        self.rounds: list[list[Mapping[str, Any]]] = []

    def __call__(self, options: Sequence[Mapping[str, Any]]) -> list[float]:
        self.rounds.append(list(options))
        return [self.loss(overlay(VALUES, dict(option))) for option in options]


def far_from(best: float) -> Callable[[Mapping[str, Any]], float]:
    return lambda values: abs(math.log(values["optimizer"]["lr"] / best))


@pytest.mark.parametrize("best", [1e-3, 1.5e-3, 4e-4, 2e-2, 6e-5])
def test_the_rate_is_found_to_a_quarter_of_an_octave(best: float) -> None:
    ask = Asked(far_from(best))
    found = tune(VALUES, [LEARNING_RATE], ask)
    assert far_from(best)(overlay(VALUES, dict(found.changes))) <= math.log(2) / 4 + 1e-3
    asked = [option["optimizer"]["lr"] for options in ask.rounds for option in options]
    assert len(asked) == len(set(asked))
    assert len(found.tried) == len(asked)


def test_a_rate_at_which_everything_diverges_is_left_downwards() -> None:
    def loss(values: Mapping[str, Any]) -> float:
        rate = values["optimizer"]["lr"]
        return math.inf if rate > 2e-4 else 1.0 + rate

    found = tune(VALUES, [LEARNING_RATE], Asked(loss))
    assert found.changes["optimizer"]["lr"] < 2e-4


def test_each_knob_is_tried_at_the_best_of_those_before() -> None:
    def loss(values: Mapping[str, Any]) -> float:
        cosine = values["plugins"]["lr-schedule"]["name"] == "cosine"
        steps = values["plugins"]["lr-schedule"]["warmup"]
        init = values["model"]["options"].get("init_scale", 1.0)
        return abs(steps - 20) + abs(init - 0.5) + far_from(2e-3)(values) - cosine

    ask = Asked(loss)
    found = tune(VALUES, KNOBS, ask)
    assert KNOBS == found.swept
    expected = {
        "optimizer": {"lr": 2e-3},
        "model": {"options": {"init_scale": 0.5}},
        "plugins": {"lr-schedule": {"warmup": 20, "name": "cosine"}},
    }
    assert expected == found.changes
    asked = [option for options in ask.rounds for option in options]
    assert all(asked.count(option) == 1 for option in asked)


def test_the_rate_is_tuned_again_where_another_knob_changed() -> None:
    def loss(values: Mapping[str, Any]) -> float:
        schedule = values["plugins"]["lr-schedule"]
        cosine = schedule["name"] == "cosine"  # and a quarter of the rate with it
        return far_from(5e-4 if cosine else 2e-3)(values) - 2 * cosine

    found = tune(VALUES, [LEARNING_RATE, DECAY], Asked(loss))
    chosen = {"plugins": {"lr-schedule": {"name": "cosine"}}}
    assert {"optimizer": {"lr": 5e-4}, **chosen} == found.changes


@pytest.fixture
def factories() -> Iterator[str]:
    """Return the name of a module with a user's own factories."""
    module = ModuleType("users_own_models")
    module.__dict__.update(plain=lambda width=4: width, scaled=lambda init_scale=0.5: init_scale)
    sys.modules[module.__name__] = module
    yield module.__name__
    del sys.modules[module.__name__]


@pytest.mark.parametrize(("given", "tried"), [({}, [0.25, 1.0]), ({"init_scale": 2}, [1.0, 4.0])])
def test_a_factory_that_takes_a_scale_of_its_initialisation_is_swept(
    factories: str, given: dict[str, Any], tried: list[float]
) -> None:
    values = {**VALUES, "model": {"name": f"{factories}:scaled", "options": given}}
    options = [{"model": {"options": {"init_scale": scale}}} for scale in tried]
    assert options == alternatives(INIT, values)


def test_a_knob_without_a_say_is_not_swept(factories: str) -> None:
    values = {**VALUES, "model": {"name": f"{factories}:plain", "options": {}}}
    assert [] == alternatives(INIT, values)
    assert (LEARNING_RATE,) == tune(values, [LEARNING_RATE, INIT], Asked(far_from(1e-3))).swept


def of_schedules(knob: str, **schedule: Any) -> list[dict[str, Any]]:
    """Return what is tried of a schedule, without the names of its tables."""
    plugins = {"lr-schedule": schedule} if schedule else {}
    found = alternatives(knob, {**VALUES, "plugins": plugins})
    return [option["plugins"]["lr-schedule"] for option in found]


def test_what_is_tried_of_a_schedule() -> None:
    linear = {"name": "linear", "warmup": 10}
    assert [{"warmup": 5}, {"warmup": 20}] == of_schedules(WARMUP, **linear)
    assert [{"name": "cosine"}] == of_schedules(DECAY, **linear)
    assert [{"warmup": 20}, {"warmup": 80}] == of_schedules(WARMUP, name="cosine", warmup=0.1)
    assert [{"warmup": 150}, {"warmup": 400}] == of_schedules(WARMUP, name="cosine", warmup=300)


def test_a_run_without_a_schedule_is_tried_with_one() -> None:
    counted = {"count_jumps": False}
    assert [{"name": "constant", "warmup": 20, **counted}] == of_schedules(WARMUP)
    decays = [{"name": name, "warmup": 0, **counted} for name in ("linear", "cosine")]
    assert decays == of_schedules(DECAY)


def test_wsd_keeps_room_for_its_decay_and_is_left_without_it() -> None:
    wsd = {"name": "wsd", "warmup": 160, "decay": 0.25}
    assert [{"warmup": 80}, {"warmup": 300}] == of_schedules(WARMUP, **wsd)
    left = [{"name": name, "decay": None} for name in ("linear", "cosine")]
    assert left == of_schedules(DECAY, **wsd)
    for option in of_schedules(DECAY, **wsd) + of_schedules(WARMUP, **wsd):
        LrScheduleConfig(**{**wsd, **option})


def test_a_class_of_torch_is_not_tuned() -> None:
    assert [] == of_schedules(WARMUP, name="StepLR") == of_schedules(DECAY, name="StepLR")
