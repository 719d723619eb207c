"""Verdicts over a run's life: resumed, told, accounted for, and refused."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from judged import PHASES, SOON, Along, Back, events, figures, goes_on_alike, predictor, trained
from support import tiny_trainer

from neaptide import ConfigError
from neaptide.api.spans import Span
from neaptide_plugins.delayed_verdict import SPEC
from neaptide_plugins.delayed_verdict.gain import JUMP_GAIN
from neaptide_plugins.delayed_verdict.trial import TrialWeights
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("saved_after", [9, 12, 14])
def test_a_run_resumed_with_a_verdict_pending_is_the_same(tmp_path: Path, saved_after: int) -> None:
    def made() -> Any:
        return tiny_trainer(
            {"phases": PHASES, "plugins": {SPEC.name: SOON}}, [SPEC, predictor(Back)]
        )

    goes_on_alike(made, saved_after, tmp_path)


def test_a_probe_that_is_not_finite_gives_no_verdict(tmp_path: Path) -> None:
    trainer, batches = tiny_trainer(
        {"phases": PHASES, "plugins": {SPEC.name: SOON}, "run": {"dir": str(tmp_path)}},
        [SPEC, STEADY_PREDICTOR],
    )
    broken = {**batches[0], "x": torch.full_like(batches[0]["x"], math.nan)}
    with trainer:
        jumped = None
        for number, batch in enumerate(batches):
            result = trainer.step(batch)
            jumped = number if jumped is None and result.was_predicted else jumped
            if jumped is not None and number == jumped + 3:
                break
        trainer.step(broken)
        found = figures(trainer)
    assert 1.0 == found["none"]
    assert 1.0 == found["scale"]
    assert 0.0 == found["worthwhile"] + found["harmful"] + found["unclear"]
    (event,) = (each for each in events(tmp_path) if each["event"] == "verdict.none")
    assert jumped + 1 == event["jump"]


def test_each_verdict_is_told(tmp_path: Path) -> None:
    trainer, _ = trained([SPEC, predictor(Along)], 32, SOON, run={"dir": str(tmp_path)})
    told = [each for each in events(tmp_path) if each["event"].startswith("verdict.")]
    jumps = [each["step"] for each in events(tmp_path) if each["event"] == "jump.accepted"]
    assert sum(figures(trainer)[each] for each in ("worthwhile", "harmful", "unclear")) == len(told)
    assert len(told) >= 3
    for event in told:
        assert event["jump"] in jumps
        assert event["step"] == event["jump"] + 4 + 1
        assert "high" == event["regime"]
        assert event["stderr"] >= 0.0
    assert [True, True, False] == ["gain_by_forecast" not in each for each in told[:3]]


def test_what_it_holds_is_in_the_ledger() -> None:
    trainer, batches = tiny_trainer({"plugins": {SPEC.name: SOON}}, [SPEC, STEADY_PREDICTOR])
    with trainer:
        for batch in batches[:2]:
            trainer.step(batch, phase="full")
        trainable = sum(each.numel() for each in trainer.model.parameters() if each.requires_grad)
        ledger = trainer.estimate_memory("full")
        assert 6 * trainable == ledger.total(owner=SPEC.name, moment="update")
        assert 10 * trainable == ledger.total(owner=SPEC.name, moment="predict")


def test_without_a_predictor_there_is_nothing_to_judge() -> None:
    with pytest.raises(ConfigError, match=r"'delayed-verdict' requires 'predictor'"):
        tiny_trainer({"plugins": {SPEC.name: {}}})


def test_an_average_over_more_than_there_is_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'average' must be at most after = 4"):
        trained([SPEC, STEADY_PREDICTOR], settings={"after": 4, "average": 5})


@pytest.mark.parametrize("thawed", range(7, 14))
def test_a_weight_thawed_while_a_jump_is_judged_is_left_alone(thawed: int) -> None:
    trainer, batches = tiny_trainer(
        {"phases": PHASES, "plugins": {SPEC.name: SOON}}, [SPEC, STEADY_PREDICTOR]
    )
    late = trainer.model.first.bias
    late.requires_grad_(False)
    with trainer:
        for number, batch in enumerate(batches):
            if number == thawed:
                late.requires_grad_(True)
            before = late.detach().clone()
            result = trainer.step(batch)
            assert number >= thawed or torch.equal(before, late)
            assert result.updated
        figures_then = figures(trainer)
    assert 0.0 == figures_then["none"]
    assert figures_then["worthwhile"] + figures_then["harmful"] + figures_then["unclear"] >= 1.0


def test_what_a_weight_was_when_it_was_thawed_late_is_no_part_of_its_mean() -> None:
    kept = TrialWeights(torch.device("cpu"), torch.float32)
    spans = [Span(name, (2,), torch.float32, "device", True, ()) for name in ("a", "b")]
    kept.reserve(iter(spans))
    for jump in (("a", "b"), ("a",)):  # b cannot change when the second one comes
        kept.forget()
        for name in jump:
            kept.record(name, torch.ones(2))
        for number in (1, 2):
            for name in ("a", "b"):
                kept.average({name: torch.full((2,), 3.0)}, number)
    assert torch.equal(torch.full((2,), 2.0), kept.moved(spans[0], -1.0, kept.device))
    assert [True, False] == [kept.complete("a"), kept.complete("b")]


def test_a_scheduler_hears_what_each_jump_gained_once_resumed_too(tmp_path: Path) -> None:
    def made() -> Any:
        return tiny_trainer(
            {"phases": PHASES, "plugins": {SPEC.name: SOON}}, [SPEC, STEADY_PREDICTOR]
        )

    trainer, batches = made()
    heard: list[Any] = []
    with trainer:
        jumps = []
        for batch in batches[:20]:
            result = trainer.step(batch)
            heard.append(trainer.run.stash.get(JUMP_GAIN))
            if result.was_predicted:
                jumps.append((result.step, result.jump.horizon))
        trainer.save(tmp_path / "saved")
        gain = figures(trainer)["gain"]
    assert heard[jumps[0][0] + SOON["after"] - 1] is None
    told = heard[-1]
    assert (told.jump, told.horizon) in jumps
    assert gain == told.gain
    trainer, _ = made()
    with trainer:
        trainer.load(tmp_path / "saved")
        assert told == trainer.run.stash.get(JUMP_GAIN)
