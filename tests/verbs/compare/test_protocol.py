"""What a comparison trains with what settings; the training itself is a known function here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide.config import unstructure
from neaptide.config.tables import overlay
from neaptide.hooks.enabling import configured
from neaptide_verbs.compare.protocol import compare
from neaptide_verbs.compare.runs import ComparisonSettings
from neaptide_verbs.compare.sides import Side
from neaptide_verbs.compare.trials import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide_verbs.compare.trials import TrainingTrial

TASK = {
    "model": {"name": "builtin:mlp"},
    "data": {"name": "builtin:digits"},
    "train": {"steps": 1000},
    "plugins": {"lr-schedule": {"name": "linear", "warmup": 50}},
}


def cosine_is_better(trials: Sequence[TrainingTrial]) -> list[Result]:
    """Return losses by which the cosine and twice the rate and the warmup are best."""
    results = []
    for trial in trials:
        schedule, steps = trial.values["plugins"]["lr-schedule"], trial.values["train"]["steps"]
        loss = 1.0 - 0.1 * (schedule["name"] == "cosine") - 0.05 * (steps / 1000)
        loss += abs(trial.values["optimizer"]["lr"] - 2e-3) + abs(
            schedule.get("warmup", 100) / steps - 0.1
        )
        results.append(Result(loss, None, steps, 1.0, 0, 0, 0, 0.0, "", 1))
    return results


def chosen(**candidate: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schedules of both sides after the tuning."""
    plain = unstructure(configured({**TASK, "optimizer": {"lr": 1e-3}})[0])
    sides = (Side("baseline", plain), Side("candidate", overlay(plain, candidate)))
    found = compare(sides, ComparisonSettings(seeds=(1,)), cosine_is_better)
    return tuple(dict(side.values["plugins"]["lr-schedule"]) for side in found.sides)  # type: ignore[return-value]


def test_what_the_baselines_tuning_chose_is_common() -> None:
    baseline, candidate = chosen()
    assert baseline == candidate
    assert "cosine" == baseline["name"]
    assert 50 != baseline["warmup"]


def test_what_a_side_sets_otherwise_is_what_is_compared() -> None:
    baseline, candidate = chosen(plugins={"lr-schedule": {"name": "constant"}})
    assert ("cosine", "constant") == (baseline["name"], candidate["name"])
    assert baseline["warmup"] == candidate["warmup"]


def test_a_scheduler_of_torch_keeps_its_options() -> None:
    own = {"name": "StepLR", "warmup": 0.0, "options": {"step_size": 5}}
    baseline, candidate = chosen(plugins={"lr-schedule": own})
    assert "cosine" == baseline["name"]
    assert own == {key: candidate[key] for key in own}


def test_another_model_has_options_of_its_own() -> None:
    plain = unstructure(configured({**TASK, "optimizer": {"lr": 1e-3}})[0])
    plain = overlay(plain, {"model": {"name": "builtin:digits-cnn", "options": {}}})
    own = overlay(plain, {"model": {"name": "somewhere:net"}})

    def a_small_start_is_better(trials: Sequence[TrainingTrial]) -> list[Result]:
        scale = [trial.values["model"]["options"].get("init_scale", 1.0) for trial in trials]
        known = cosine_is_better(trials)
        return [attrs.evolve(it, loss=each) for each, it in zip(scale, known, strict=True)]

    sides = (Side("baseline", plain), Side("candidate", own))
    baseline, candidate = compare(
        sides, ComparisonSettings(seeds=(1,)), a_small_start_is_better
    ).sides
    assert 0.5 == baseline.values["model"]["options"]["init_scale"]
    assert {} == candidate.values["model"]["options"]
