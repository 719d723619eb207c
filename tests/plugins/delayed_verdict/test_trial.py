from __future__ import annotations

import math

import pytest
import torch
from support import same_tensors, tiny_trainer

from neaptide_plugins.delayed_verdict.trial import JumpTrial, TrialWeights, extrapolated, losses_of
from neaptide_toolkit.testing.hostile_store import HOSTILE_STORE

CPU = torch.device("cpu")


def test_a_gain_is_half_of_what_the_mirrored_jump_costs_more() -> None:
    trial = JumpTrial(7, 5, "high", None, losses=[[2.0, 2.3, 1.9], [1.0, 1.2, 1.2]])
    assert pytest.approx([0.2, 0.0]) == trial.gains
    assert pytest.approx(0.1) == trial.gain
    assert pytest.approx(0.1) == trial.error
    assert pytest.approx(1.5) == trial.loss


def test_a_gain_is_what_leaving_the_jump_out_would_cost() -> None:
    trial = JumpTrial(7, 5, "high", None, losses=[[2.0, 2.3], [1.0, 1.2]])
    assert pytest.approx([0.3, 0.2]) == trial.gains


def test_losses_are_extrapolated_along_log_updates() -> None:
    points = [[float(at), 5.0 - 0.5 * math.log1p(at)] for at in (10, 100, 200, 400)]
    assert pytest.approx(5.0 - 0.5 * math.log1p(500)) == extrapolated(points, 500)
    assert extrapolated(points[:1], 500) is None
    assert extrapolated([[10.0, 1.0], [10.0, 2.0]], 500) is None


@pytest.mark.parametrize(
    ("state", "allowed"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)], ids=str
)
def test_the_mean_is_that_of_the_samples(state: torch.dtype, allowed: float) -> None:
    weights = torch.randn(9, 3, 4, generator=torch.Generator().manual_seed(0))
    kept = TrialWeights(CPU, state, {}, {"w": torch.full((3, 4), math.nan, dtype=state)})
    kept.samples["w"] = 0
    for number, weight in enumerate(weights, start=1):
        kept.average({"w": weight}, number)
    torch.testing.assert_close(kept.mean["w"].float(), weights.mean(0), rtol=0, atol=allowed)


@pytest.mark.parametrize("weights_of", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16], ids=str)
def test_weights_given_together_have_the_bits_of_each_alone(
    state: torch.dtype, weights_of: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (3, 4), "b": (1,), "c": (70, 70), "late": (5,)}
    together, alone = (TrialWeights(CPU, state) for _ in range(2))
    for kept in (together, alone):
        for name, shape in shapes.items():
            kept.mean[name] = torch.full(shape, math.nan, dtype=state)
            kept.samples[name] = 0
    for number in range(1, 6):
        now = {
            name: torch.randn(shape, generator=generator).to(weights_of)
            for name, shape in shapes.items()
            if number > 1 or name != "late"
        }
        together.average(now, number)
        for name, weight in now.items():
            alone.average({name: weight}, number)
    assert same_tensors(together.mean, alone.mean)
    assert {"a": 5, "b": 5, "c": 5, "late": 0} == together.samples == alone.samples


@pytest.mark.parametrize("hostile", [False, True])
@pytest.mark.parametrize("contrast", ["mirrored", "undone"])
def test_the_losses_are_those_of_the_moved_weights(contrast: str, hostile: bool) -> None:  # noqa: FBT001 - a parameter of the test
    trainer, batches = tiny_trainer(plugins=[HOSTILE_STORE] if hostile else [])
    with trainer:
        trainer.step(batches[0])
        store = trainer.store
        before = store.snapshot()
        kept = TrialWeights(CPU, torch.float32)
        kept.reserve(span for span in store.spans() if span.trainable)
        expected = []
        generator = torch.Generator().manual_seed(0)
        for name, weight in before.weights.items():
            kept.record(name, torch.randn(weight.shape, generator=generator).bfloat16() * 0.01)
            kept.average({name: weight * 0.9}, 1)
        for jumps in (0.0, -1.0, 1.0)[: 3 if contrast == "mirrored" else 2]:
            for span in store.spans():
                if span.trainable:
                    with store.loan(span, "write") as place:
                        jump = kept.jump[span.name].float()
                        place.data.copy_(before.weights[span.name] * 0.9 + jumps * jump)
            expected.append(trainer.evaluate([batches[1]]))
        store.restore(before)
        found = losses_of(store, kept, lambda: trainer.evaluate([batches[1]]), contrast)
        assert pytest.approx(expected, rel=1e-6) == found
        assert same_tensors(before.weights, store.snapshot().weights)


def test_the_weights_are_back_after_a_probe_that_raises() -> None:
    trainer, _ = tiny_trainer()
    with trainer:
        before = trainer.store.snapshot()
        kept = TrialWeights(CPU, torch.float32)
        kept.reserve(span for span in trainer.store.spans() if span.trainable)

        def probe() -> float:
            raise RuntimeError

        with pytest.raises(RuntimeError):
            losses_of(trainer.store, kept, probe, "undone")
        assert same_tensors(before.weights, trainer.store.snapshot().weights)
