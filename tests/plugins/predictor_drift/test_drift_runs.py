"""The predictor in runs: what it proposes is what the weights did, as far as it may reach."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import DEVICE, same_tensors, tensors_of, tiny_trainer

from neaptide_plugins.predictor_drift import SPEC
from neaptide_toolkit.testing import check_plugin

if TYPE_CHECKING:
    from pathlib import Path


def trainer_of(horizon: int = 100, **settings: Any) -> Any:
    """Return a trainer of the tiny task with Predict due at every other update after three."""
    config = {
        "phases": {
            "warmup": {"steps": 2},
            "full": {"steps": 1},
            "predict": {"max_horizon": horizon, "correction_interval": 1, "rise": 10.0},
            "correct": {"steps": 1},
        },
        "plugins": {SPEC.name: {"sample_every": 1, "min_window": 8, "max_window": 8, **settings}},
    }
    return tiny_trainer(config, [SPEC])


def predictor_of(trainer: Any) -> Any:
    return trainer.hooks.plugins[SPEC.name]


def norm_of(sums: dict[str, torch.Tensor]) -> float:
    return math.sqrt(sum(float(total.double().square().sum()) for total in sums.values()))


def first_jump(
    horizon: int = 100, **settings: Any
) -> tuple[Any, list[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    """Return the first step with a jump, the weights after each update before, and the sums."""
    trainer, batches = trainer_of(horizon, **settings)
    samples: list[dict[str, torch.Tensor]] = []
    with trainer:
        for batch in batches:
            window = predictor_of(trainer).state_dict()["window"] or {"rows": {}}
            sums = {name: rows[0]["values"].clone() for name, rows in window["rows"].items()}
            result = trainer.step(batch)
            if result.jump is not None:
                return result, samples, sums
            samples.append(tensors_of(trainer.model))
    pytest.fail("the run had no jump")


@pytest.mark.parametrize("settings", [{"tier": "device"}, {"scale": 1.0}])
def test_it_keeps_the_contract(settings: dict[str, Any]) -> None:
    check_plugin(SPEC, {"min_window": 4, "sample_every": 1, **settings})


def test_the_sum_is_the_drift_of_the_run() -> None:
    _, samples, sums = first_jump()
    window = samples[2:10]  # it begins after the two updates of Warmup
    trainer, _ = trainer_of()
    trained = {name for name, p in trainer.model.named_parameters() if p.requires_grad}
    assert trained == sums.keys()  # no frozen weight, no buffer, a tied one once
    for name, total in sums.items():
        first, second = (
            torch.stack([sample[name] for sample in half]).mean(0)
            for half in (window[:4], window[4:])
        )
        torch.testing.assert_close(total.to(DEVICE), second - first, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("scale", "horizon", "reached", "share"),
    [(0.5, 100, 2, 0.5), (1.0, 100, 4, 1.0), (1.0, 3, 3, 0.75), (1.0, 1, 1, 0.25)],
)
def test_a_jump_goes_a_share_of_the_drift_within_the_horizon(
    scale: float, horizon: int, reached: int, share: float
) -> None:
    result, _, sums = first_jump(horizon, scale=scale)
    assert result.jump.accepted
    assert reached == result.jump.horizon
    assert pytest.approx(share * norm_of(sums), rel=1e-5) == result.jump.norm


def test_a_skipped_update_is_no_update_of_the_window() -> None:
    trainer, batches = trainer_of()
    poison = {**batches[0], "x": torch.full_like(batches[0]["x"], math.nan)}
    with trainer:
        for batch in batches[:5]:
            trainer.step(batch)
        before = predictor_of(trainer).collect_metrics()
        assert not trainer.step(poison).updated
        assert before == predictor_of(trainer).collect_metrics()
        assert {"window": 8.0, "seen": 3.0} == before


def test_there_is_no_window_during_warmup() -> None:
    trainer, batches = trainer_of()
    with trainer:
        for batch in batches[:2]:
            trainer.step(batch)
            assert {} == predictor_of(trainer).collect_metrics()
        trainer.step(batches[2])
        assert {"window": 8.0, "seen": 1.0} == predictor_of(trainer).collect_metrics()


@pytest.mark.parametrize("saved_after", [1, 5, 10, 11, 13])
def test_a_run_resumed_within_a_window_jumps_the_same(tmp_path: Path, saved_after: int) -> None:
    def run(first: int, last: int, load: Path | None = None, save: Path | None = None) -> Any:
        trainer, batches = trainer_of()
        with trainer:
            if load is not None:
                trainer.load(load)
            jumps = [trainer.step(batch).was_predicted for batch in batches[first:last]]
            if save is not None:
                trainer.save(save)
            return jumps, tensors_of(trainer.model)

    whole_jumps, whole = run(0, 24)
    before, _ = run(0, saved_after, save=tmp_path / "saved")
    after, resumed = run(saved_after, 24, load=tmp_path / "saved")
    assert any(whole_jumps)
    assert whole_jumps == [*before, *after]
    assert same_tensors(whole, resumed)
