"""The meter: what rounding adds, as a share of the noise of micro-batches, and what is no pass."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from neaptide import HybridTrainer
from neaptide_plugins.low_precision_backward.meter import Meter, adam_factors
from neaptide_plugins.optimizer_offload.compressed_state import CompressedState
from neaptide_toolkit.offload.resident_store import ResidentStore
from neaptide_toolkit.testing.tiny import tiny_loss, tiny_task

if TYPE_CHECKING:
    from neaptide_plugins.low_precision_backward.meter import VarianceVerdict

SIZE = 200_000


def meter(limit: float = 0.025) -> Meter:
    return Meter(10, limit, [torch.zeros(SIZE)])


def gaussian(seed: int, deviation: float = 1.0) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)) * deviation


def judged(one: Meter, noise: float, rounding: float) -> VarianceVerdict | None:
    """Measure two micro-batches of known noise and rounding around a gradient of ones."""
    verdict = None
    for place in range(2):
        exact = 1.0 + gaussian(place, noise)
        verdict = one.take([exact], [exact + gaussian(place + 2, rounding)])
    return verdict


@pytest.mark.parametrize(("noise", "rounding"), [(1.0, 0.1), (3.0, 0.1), (0.5, 0.2)])
def test_the_ratio_is_that_of_the_variances(noise: float, rounding: float) -> None:
    one = meter()
    verdict = judged(one, noise, rounding)
    expected = (rounding / noise) ** 2
    assert verdict is not None
    assert verdict.ratio == pytest.approx(expected, rel=0.02)
    assert verdict.passed is (expected <= 0.025)
    assert ("over 2.50%" in verdict.reason) is not verdict.passed
    assert (0, False) == (one.updates, one.waiting)


def test_it_is_due_after_so_many_updates_and_until_a_second_micro_batch() -> None:
    one = meter()
    one.updates = 9
    assert not one.due
    one.updates = 10
    assert one.due
    assert one.take([gaussian(0)], [gaussian(1)]) is None
    assert one.due
    assert one.take([gaussian(2)], [gaussian(3)]) is not None
    assert not one.due


def test_a_measurement_goes_on_after_a_resume() -> None:
    one, other = meter(), meter()
    exact = [1.0 + gaussian(place) for place in range(2)]
    low = [each + gaussian(place + 2, 0.1) for place, each in enumerate(exact)]
    one.take([exact[0]], [low[0]])
    other.load_state_dict(one.state_dict())
    assert one.take([exact[1]], [low[1]]) == other.take([exact[1]], [low[1]])
    fewer = Meter(10, 0.025, [torch.zeros(3)])
    fewer.load_state_dict(meter().state_dict() | {"kept": [torch.zeros(SIZE)]})
    assert not fewer.waiting, "gradients of other parameters are of no use"


@pytest.mark.parametrize("wrong", [math.inf, math.nan])
def test_what_is_not_finite_is_no_pass(wrong: float) -> None:
    one, exact = meter(), gaussian(0)
    low = exact.clone()
    low[0] = wrong
    verdict = one.take([exact], [low])
    assert verdict is not None
    assert (False, math.inf) == (verdict.passed, verdict.ratio)
    assert verdict.reason == "its gradients are not finite where the exact ones are"


def test_a_micro_batch_that_is_not_finite_is_measured_again_but_not_for_ever() -> None:
    one, broken = meter(), torch.full((SIZE,), math.nan)
    assert one.take([broken], [broken]) is None
    assert judged(one, 1.0, 0.1) is not None
    assert [None, None] == [one.take([broken], [broken]) for _ in range(2)]
    verdict = one.take([broken], [broken])
    assert verdict is not None
    assert verdict.reason == "the gradients of 3 micro-batches in a row are not finite"


def test_gradients_no_rounding_has_touched_prove_nothing() -> None:
    one, exact = meter(), gaussian(0)
    for _ in range(2):
        assert one.take([exact], [exact.clone()]) is None
    verdict = one.take([exact], [exact.clone()])
    assert verdict is not None
    assert "no trace of a product in low precision" in verdict.reason


def test_noise_of_untouched_gradients_hides_nothing() -> None:
    one = Meter(10, 0.025, [torch.zeros(SIZE), torch.zeros(SIZE)])
    verdict = None
    for place in range(2):
        touched, untouched = 1.0 + gaussian(place), gaussian(place + 4, 100.0)
        low = touched + gaussian(place + 2, 0.2)
        verdict = one.take([touched, untouched], [low, untouched.clone()])
    assert verdict is not None
    assert verdict.ratio == pytest.approx(0.04, rel=0.02)


def test_batches_that_do_not_differ_have_no_variance_to_hide_in() -> None:
    one, exact = meter(), torch.ones(SIZE)
    verdict: Any = None
    for place in range(2):
        verdict = one.take([exact], [exact + gaussian(place, 1e-3)])
    assert (False, math.inf) == (verdict.passed, verdict.ratio)


NAMES = ("0", "1")


def stepped(cls: Any) -> tuple[ResidentStore, list[torch.nn.Parameter]]:
    """Return a store after one update; the first gradient of the first weight is 0."""
    weights = [torch.nn.Parameter(torch.ones(20, 20)), torch.nn.Parameter(torch.ones(300))]
    optimizer = cls(weights)
    for weight in weights:
        weight.grad = torch.full_like(weight, 2.0)
    weights[0].grad[0, 0] = 0.0
    optimizer.step()
    return ResidentStore(torch.nn.ParameterList(weights), optimizer), weights


def test_adams_metric_weighs_by_what_moves_weights() -> None:
    store, weights = stepped(torch.optim.AdamW)
    factors = adam_factors(store, NAMES)
    assert factors is not None
    assert factors[0].flatten()[0] == 0.0
    moment = store.optimizer.state[weights[1]]["exp_avg_sq"]
    assert torch.allclose(factors[1], moment.double().sqrt().reciprocal())


def test_without_a_second_moment_there_is_no_adams_metric() -> None:
    weights = [torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(3))]
    store = ResidentStore(torch.nn.ParameterList(weights), torch.optim.AdamW(weights))
    assert adam_factors(store, NAMES) is None, "before the first update"
    assert adam_factors(stepped(torch.optim.SGD)[0], NAMES) is None


def test_adams_metric_reads_evicted_state() -> None:
    store, weights = stepped(torch.optim.AdamW)
    expected = adam_factors(store, NAMES)
    CompressedState().leave(store, store.spans())
    assert store.optimizer.state[weights[1]]["exp_avg_sq"].numel() == 0
    found = adam_factors(store, NAMES)
    assert expected is not None
    assert found is not None
    for one, other in zip(expected, found, strict=True):
        assert torch.allclose(one, other, rtol=0.05)


def test_adams_metric_reads_streamed_state() -> None:
    task = tiny_task(steps=2)
    config = {"plugins": {"layer-streaming": {"optimizer_on": "device"}}}
    with HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, config=config) as trainer:
        for batch in task.batches:
            trainer.step(batch)
        store = trainer.store
        spans = [span for span in store.spans() if span.tier == "host" and span.trainable]
        factors = adam_factors(store, [span.name for span in spans])
        assert spans
        assert factors is not None
        for span, factor in zip(spans, factors, strict=True):
            with store.loan(span, "read", of="state") as state:
                moment = state["exp_avg_sq"].double()
            expected = torch.where(moment > 0, moment.rsqrt(), 0.0)
            assert torch.equal(expected, factor)
