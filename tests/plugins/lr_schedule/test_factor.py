"""The schedule that other plugins read: the factor of the peak rate, also of updates to come."""

from __future__ import annotations

from typing import Any

import pytest
from scheduled import STEPS, batches, in_a_run, loss_fn, settings, two_groups
from support import CYCLE, tiny_trainer

from neaptide import HybridTrainer
from neaptide.api.stash import Stash
from neaptide_plugins.lr_schedule.curve import Curve
from neaptide_toolkit.predictors.learning_rate import RATE_FACTOR, rate_factor
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

GIVEN: list[dict[str, Any]] = [
    {"name": "linear", "warmup": 3},
    {"name": "wsd", "floor": 0.1},
    {"name": "OneCycleLR"},
    {"name": "StepLR", "options": {"step_size": 5}},
]


@pytest.mark.parametrize("given", GIVEN, ids=lambda given: given["name"])
def test_it_is_the_rate_of_each_update_before_it_is_made(given: dict[str, Any]) -> None:
    rates = [first for ((first, _), *_) in in_a_run(given)[0]]
    model, optimizer = two_groups()
    with HybridTrainer(model, optimizer, loss_fn=loss_fn, config=settings(**given)) as trainer:
        factor = rate_factor(trainer.run.stash)
        ahead = [0.01 * factor(update) for update in reversed(range(STEPS))]
        assert pytest.approx(rates[::-1], rel=1e-12) == ahead
        for update, batch in enumerate(batches()):
            assert pytest.approx(rates[update], rel=1e-12) == trainer.step(batch).lr
            assert pytest.approx(rates, rel=1e-12) == [0.01 * factor(one) for one in range(STEPS)]


@pytest.mark.parametrize("name", ["constant", "linear", "cosine", "wsd"])
def test_the_factor_of_a_curve_is_exact(name: Any) -> None:
    given = settings(name=name, warmup=5)
    with HybridTrainer(*two_groups(), loss_fn=loss_fn, config=given) as trainer:
        factor = rate_factor(trainer.run.stash)
        curve = Curve(name=name, steps=STEPS, warmup=5, decay=5 if name == "wsd" else 0)
        assert all(factor(update) == curve.factor(update) for update in range(2 * STEPS))


@pytest.mark.parametrize("counts", [True, False])
def test_jumps_that_count_are_in_it(counts: bool) -> None:  # noqa: FBT001 - a case
    given = {"name": "linear", "count_jumps": counts}
    config = {"phases": CYCLE, "train": {"steps": 100}, "plugins": {"lr-schedule": given}}
    trainer, some = tiny_trainer(config, [STEADY_PREDICTOR])
    with trainer:
        for batch in some[:20]:
            trainer.step(batch)
        counted = counts * trainer.state.predicted
        assert trainer.state.predicted > 0
        assert 1 - (50 + counted) / 100 == rate_factor(trainer.run.stash)(50)


def test_it_is_one_until_a_schedule_is_there() -> None:
    stash = Stash()
    factor = rate_factor(stash)
    assert 1.0 == factor(7)
    stash.set(RATE_FACTOR, lambda updates: updates / 10)
    assert 0.7 == factor(7)
