"""Verdicts in runs: what is judged is what happened, and judging leaves no trace."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from judged import PHASES, SOON, Along, Away, Back, Noise, events, figures, line, predictor, trained
from support import same_tensors, tensors_of, tiny_trainer

from neaptide_plugins.delayed_verdict import SPEC
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from pathlib import Path

    import torch


@pytest.mark.parametrize("contrast", ["mirrored", "undone"])
def test_a_jump_forward_is_worthwhile_and_one_back_is_harmful(contrast: str) -> None:
    forward = figures(line(Along, contrast=contrast))
    assert forward["worthwhile"] == 3.0
    assert 1.25**3 == forward["scale"] == forward["window"]
    back = figures(line(Back, contrast=contrast))
    assert back["harmful"] == 3.0
    assert 0.0 == back["scale"]
    assert 0.25 == back["window"]


def test_undoing_flatters_what_training_has_undone_and_mirroring_does_not() -> None:
    undone = figures(line(Noise, 0.2, there=True, contrast="undone"))
    assert undone["worthwhile"] > 0.0
    mirrored = figures(line(Noise, 0.2, there=True, contrast="mirrored"))
    assert 0.0 == mirrored["worthwhile"]
    assert mirrored["harmful"] > 0.0


def test_jumps_accepted_while_one_is_judged_are_not(tmp_path: Path) -> None:
    often = {**PHASES, "full": {"steps": 2}}
    trained([SPEC, STEADY_PREDICTOR], 30, SOON, phases=often, run={"dir": str(tmp_path)})
    told = [each["jump"] for each in events(tmp_path) if each["event"].startswith("verdict.")]
    accepted = [each["step"] for each in events(tmp_path) if each["event"] == "jump.accepted"]
    assert len(told) >= 3
    assert len(accepted) >= 2 * len(told)
    assert min(later - sooner for sooner, later in pairwise(told)) > 4


def test_a_predictor_that_harms_is_slowed_down_then_stopped() -> None:
    trainer = line(Back, patience=2)
    scales = trainer.hooks.plugins["walker"].scales
    assert [1.0, 0.5, 0.0] == list(dict.fromkeys(scales))


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"ema": {"decay": 0.9}},
        {"gradient-accumulation": {"steps": 3}},
        {"mixed-precision": {"full": "bf16", "correct": "bf16"}},
        {"layer-streaming": {}},
        {"int8": {}},
    ],
    ids=str,
)
def test_judging_changes_no_bit(tables: dict[str, Any]) -> None:
    names = list(tables)
    _, expected = trained([STEADY_PREDICTOR, *names], tables=tables)
    trainer, weights = trained([SPEC, STEADY_PREDICTOR, *names], settings=SOON, tables=tables)
    found = figures(trainer)
    assert 2.0 <= found["worthwhile"] + found["harmful"] + found["unclear"]
    assert 0.0 == found["none"]
    assert same_tensors(expected, weights)


def test_with_every_jump_refused_nothing_is_judged_and_no_bit_changes() -> None:
    strict = {"phases": {**PHASES, "predict": {**PHASES["predict"], "halvings": 0, "rise": 0.0}}}
    _, expected = trained([])
    trainer, weights = trained([SPEC, predictor(Away)], settings=SOON, **strict)
    assert trainer.hooks.plugins["walker"].scales
    found = figures(trainer)
    assert 0.0 == found["worthwhile"] + found["harmful"] + found["unclear"]
    assert trainer.state.jumps == 0
    assert same_tensors(expected, weights)


def test_the_verdict_is_on_the_mean_of_the_last_weights_and_the_jump() -> None:
    trainer, batches = tiny_trainer(
        {"phases": PHASES, "plugins": {SPEC.name: {**SOON, "contrast": "undone"}}},
        [SPEC, STEADY_PREDICTOR],
    )
    trained_names = {name for name, each in trainer.model.named_parameters() if each.requires_grad}

    def weights() -> dict[str, torch.Tensor]:
        return {
            name: each for name, each in tensors_of(trainer.model).items() if name in trained_names
        }

    samples: list[dict[str, torch.Tensor]] = []
    delta: dict[str, torch.Tensor] = {}
    gains: list[float] = []
    with trainer:
        for batch in batches:
            before = weights()
            if len(samples) >= 4:
                mean = {name: (samples[2][name] + samples[3][name]) / 2 for name in before}
                state = tensors_of(trainer.model)
                losses = []
                for jumps in (0.0, -1.0):
                    moved = {name: mean[name] + jumps * delta[name] for name in mean}
                    trainer.model.load_state_dict({**state, **moved})
                    losses.append(trainer.evaluate([batch]))
                trainer.model.load_state_dict(state)
                gains.append(losses[1] - losses[0])
            result = trainer.step(batch)
            if result.was_predicted and not delta:
                delta = {name: each * -0.001 for name, each in before.items()}
            if delta:
                samples.append(weights())
            if len(gains) == 2:
                break
        found = figures(trainer)
    # The jump is kept in bfloat16, and is small beside the rounding of a loss.
    assert pytest.approx(sum(gains) / 2, rel=0.05, abs=1e-6) == found["gain"]
    assert found["gain"] != 0.0
