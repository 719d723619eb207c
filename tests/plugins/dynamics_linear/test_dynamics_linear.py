from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import CYCLE, digest_after, same_tensors, tensors_of, tiny_trainer

from neaptide import ConfigError
from neaptide_plugins.dynamics_linear import SPEC
from neaptide_toolkit.forecasting.forecaster import TOGETHER
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from pathlib import Path

QUICK: dict[str, Any] = {"horizons": [2, 4], "every": 1, "around": 0, "least": 3}
"""Settings with which it forecasts within a run of 30 updates."""


def trainer_of(predict: dict[str, Any] | None = None, **config: Any) -> Any:
    """Return a trainer that predicts, with this plugin, and its batches."""
    phases = {**CYCLE, "predict": {**CYCLE["predict"], "max_horizon": 4, **(predict or {})}}
    whole = {"phases": phases, "plugins": {SPEC.name: QUICK}, **config}
    return tiny_trainer(whole, [SPEC, STEADY_PREDICTOR])


def confidences(predict: dict[str, Any]) -> list[float | None]:
    trainer, batches = trainer_of(predict)
    with trainer:
        results = [trainer.step(batch) for batch in batches]
    return [result.jump.confidence for result in results if result.jump is not None]


def test_jumps_carry_a_confidence_once_there_is_one() -> None:
    found = confidences({"confidence": 1e-9})
    assert found[0] is None  # scored too seldom yet: the jump goes ahead without
    assert found[-1] is not None
    assert all(0.0 <= each <= 1.0 for each in found if each is not None)


def test_a_confidence_too_low_declines_the_jump() -> None:
    certain = confidences({"confidence": 0.9999, "rise": 0.0})
    assert len(certain) < len(confidences({"confidence": 1e-9, "rise": 0.0}))
    assert all(each is None or each >= 0.9999 for each in certain)


def test_beyond_its_longest_horizon_it_says_what_it_knows_of_that() -> None:
    far = confidences({"confidence": 1e-9, "max_horizon": 400})
    assert far[-1] is not None


@pytest.mark.parametrize("rise", [0.02, 10.0])
def test_the_larger_a_rise_is_let_through_the_more_confident(rise: float) -> None:
    found = confidences({"confidence": 1e-9, "rise": rise})[-1]
    assert found is not None
    assert (found > 0.999) == (rise == 10.0)


def test_without_a_predictor_it_changes_no_bit() -> None:
    def weights(plugins: dict[str, Any]) -> dict[str, torch.Tensor]:
        trainer, batches = tiny_trainer({"plugins": plugins})
        with trainer:
            for batch in batches:
                trainer.step(batch)
            return tensors_of(trainer.model)

    assert same_tensors(weights({}), weights({SPEC.name: QUICK}))


@pytest.mark.parametrize("saved_after", [1, 9, 20])
def test_a_resumed_run_forecasts_the_same(tmp_path: Path, saved_after: int) -> None:
    trainer, batches = trainer_of({"confidence": 1e-9})
    with trainer:
        for batch in batches[:saved_after]:
            trainer.step(batch)
        trainer.save(tmp_path / "saved")
        rest = [trainer.step(batch) for batch in batches[saved_after:]]
        whole = trainer.digest()
    trainer, _ = trainer_of({"confidence": 1e-9})
    with trainer:
        trainer.load(tmp_path / "saved")
        again = [trainer.step(batch) for batch in batches[saved_after:]]
        assert whole == trainer.digest()
    assert [each.confidence for each in rest] == [each.confidence for each in again]


def test_the_same_run_twice_is_the_same() -> None:
    config = {"phases": CYCLE, "plugins": {SPEC.name: QUICK}}
    digests = [digest_after(24, config, [STEADY_PREDICTOR]) for _ in range(2)]
    assert digests[0] == digests[1]


def test_enabled_late_it_starts_with_what_the_history_has(tmp_path: Path) -> None:
    trainer, batches = tiny_trainer({})
    with trainer:
        for batch in batches[:8]:
            trainer.step(batch)
        trainer.save(tmp_path / "saved")
    trainer, _ = tiny_trainer({"plugins": {SPEC.name: QUICK}})
    with trainer:
        trainer.load(tmp_path / "saved", allow_changes=True)
        for batch in (batches[8:] * 6)[: 2 * TOGETHER]:
            trainer.step(batch)
        metrics = trainer.hooks.plugins[SPEC.name].collect_metrics()
    assert {"skill_2", "skill_4", "consulted_2", "consulted_4"} == metrics.keys()
    assert metrics["skill_2"] != 0.0


def test_a_loss_that_is_not_finite_is_told_once(tmp_path: Path) -> None:
    trainer, batches = trainer_of(
        run={"dir": str(tmp_path)}, train={"check_finite": False, "steps": 32}
    )
    broken = {**batches[0], "x": torch.full_like(batches[0]["x"], math.nan)}
    with trainer:
        for batch in [*batches[:5], broken, broken, *batches[:4]]:
            trainer.step(batch)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert 1 == sum(event["event"] == "dynamics-linear.not-finite" for event in events)
    assert 1 == sum(event["event"] == "dynamics-linear.started" for event in events)


def test_what_it_holds_is_in_the_ledger() -> None:
    trainer, _ = tiny_trainer({"plugins": {SPEC.name: {}}})
    with trainer:
        entries = trainer.estimate_memory("full").entries
    (held,) = (entry for entry in entries if entry.owner == SPEC.name)
    assert "host" == held.tier
    assert 3 * 8 * 72 * 72 < held.bytes < 3 * 8 * 73 * 78


@pytest.mark.parametrize("horizons", [[], [0, 5], [5, 5], [50, 20]])
def test_horizons_have_to_rise(horizons: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"rising order.*plugins.dynamics-linear"):
        tiny_trainer({"plugins": {SPEC.name: {"horizons": horizons}}})
