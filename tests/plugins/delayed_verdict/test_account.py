"""Jumps and verdicts stay in the budget: a share of the updates, and what the jumps were worth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from judged import PHASES, SOON, Along, Away, Back, events, figures, line, predictor, trained
from support import same_tensors, tiny_trainer

from neaptide_plugins.delayed_verdict import SPEC
from neaptide_plugins.delayed_verdict.account import PredictionAccount, worth_of
from neaptide_plugins.delayed_verdict.pacing import JumpVerdict
from neaptide_plugins.delayed_verdict.trial import fall_at

if TYPE_CHECKING:
    from pathlib import Path

GOOD, BAD, UNCLEAR = JumpVerdict.WORTHWHILE, JumpVerdict.HARMFUL, JumpVerdict.UNCLEAR


def test_forwards_are_afforded_up_to_a_share_of_the_updates_and_the_worth() -> None:
    account = PredictionAccount(forwards=4)
    assert account.affords(2, 300, 0.01)
    assert not account.affords(2, 299, 0.01)
    account.worth = 5.0
    assert account.affords(2, 0, 0.01)
    account.worth = -5.0
    assert not account.affords(2, 799, 0.01)
    assert account.affords(2, 800, 0.01)


@pytest.mark.parametrize(
    ("verdict", "gain", "fall", "worth"),
    [
        (GOOD, 0.1, 0.02, 5.0),
        (GOOD, 0.1, 0.001, 20.0),
        (GOOD, 0.1, -0.01, 20.0),
        (GOOD, 0.1, None, 0.0),
        (BAD, -0.1, 0.02, -5.0),
        (BAD, -0.1, 0.0, -20.0),
        (UNCLEAR, 0.1, 0.02, 0.0),
    ],
)
def test_a_jump_is_worth_the_updates_that_lower_the_loss_as_much(
    verdict: JumpVerdict, gain: float, fall: float | None, worth: float
) -> None:
    assert pytest.approx(worth) == worth_of(verdict, gain, fall, horizon=20)


def test_the_fall_of_the_loss_is_that_of_the_line_through_earlier_losses() -> None:
    assert fall_at([[9, 2.0]], 20) is None
    points = [[9, 2.0], [99, 1.0]]  # the loss falls by 1 while the number of updates grows tenfold
    assert pytest.approx(1.0 / 2.302585 / 100) == fall_at(points, 99)


def test_jumps_begin_when_the_budget_affords_them_and_the_reason_is_told(tmp_path: Path) -> None:
    settings = {**SOON, "budget": 0.1}
    trained([SPEC, predictor(Along)], 32, settings, run={"dir": str(tmp_path)})
    told = events(tmp_path)
    declined = [each for each in told if each["event"] == "jump.declined"]
    accepted = [each["step"] for each in told if each["event"] == "jump.accepted"]
    assert accepted
    assert all(each["step"] - 1 < 10 for each in declined[:1])
    assert min(accepted) - 1 >= 10
    reason = declined[0]["reason"]
    assert reason.startswith("delayed-verdict: predicting has cost 0 updates, its jumps were worth")


def test_a_run_too_short_for_a_jump_is_the_run_without_a_predictor() -> None:
    _, expected = trained([])
    trainer, weights = trained([SPEC, predictor(Back)], settings={**SOON, "budget": 0.01})
    assert 0 == trainer.state.jumps
    assert 0.0 == figures(trainer)["scale"]
    assert same_tensors(expected, weights)


def test_jumps_that_the_budget_affords_are_judged_only_if_it_affords_verdicts_too() -> None:
    trainer, _ = trained([SPEC, predictor(Along)], settings={**SOON, "budget": 0.1})
    found = figures(trainer)
    assert trainer.state.jumps >= 1
    assert 0.0 == sum(found[each] for each in ("worthwhile", "harmful", "unclear", "none"))
    assert float(trainer.state.jumps) == found["cost"]


def test_refused_jumps_cost_the_forwards_of_the_guard() -> None:
    phases = {**PHASES, "predict": {**PHASES["predict"], "halvings": 2, "rise": 0.02}}
    trainer, batches = tiny_trainer(
        {"phases": phases, "plugins": {SPEC.name: SOON}}, [SPEC, predictor(Away)]
    )
    costs = []
    with trainer:
        for batch in batches:
            jump = trainer.step(batch).jump
            if jump is not None:
                assert not jump.accepted
                costs.append(figures(trainer)["cost"])
    assert [2.0 * number for number in range(1, len(costs) + 1)] == costs
    assert len(costs) >= 2


def test_a_search_before_a_proposal_is_not_in_the_account() -> None:
    searching = {"min_window": 4, "max_window": 4, "sample_every": 1, "search_batches": 2}
    trainer, batches = tiny_trainer(
        {"phases": PHASES, "plugins": {SPEC.name: SOON, "predictor-drift": searching}}
    )
    with trainer:
        for batch in batches:
            trainer.step(batch)
        found = figures(trainer)
    judged = found["worthwhile"] + found["harmful"] + found["unclear"]
    assert trainer.state.jumps + judged * SOON["batches"] * 3 / 2 == found["cost"]


@pytest.mark.parametrize(("kind", "verdict"), [(Along, "worthwhile"), (Back, "harmful")])
def test_what_the_judged_jumps_were_worth_is_in_the_account(kind: Any, verdict: str) -> None:
    trainer = line(kind)
    found = figures(trainer)
    assert found[verdict] >= 2.0
    assert (found["worth"] > 0.0) == (verdict == "worthwhile")
    judged = found["worthwhile"] + found["harmful"] + found["unclear"]
    assert trainer.state.jumps + judged * SOON["batches"] * 3 / 2 == found["cost"]
