"""How low-precision weights take a jump: rounded once, and without bias where asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from neaptide.api.spans import Span
from neaptide.loop.guard import apply
from neaptide_plugins.predictor_drift.config import PredictorDriftConfig
from neaptide_plugins.predictor_drift.plugin import PredictorDrift
from neaptide_toolkit.predictors.held_tensors import Storage
from neaptide_toolkit.predictors.window import Window, WindowPlan

if TYPE_CHECKING:
    from neaptide import Update

ELEMENTS = 20_000


def proposal(delta: torch.Tensor, rounding: str) -> Update:
    plugin = PredictorDrift(PredictorDriftConfig(rounding=rounding, scale=1.0))  # type: ignore[arg-type]
    storage = Storage(plugin.ops, torch.device("cpu"))
    span = span_of(delta)
    window = Window.open(WindowPlan(2, 1), plugin.coefficients, [span], storage, "float32", began=0)
    for weight in (torch.zeros_like(delta), delta):
        window.add(span.name, weight)
        window.advance()
    plugin._window = window
    update = plugin.propose_update(10)
    assert update is not None
    return update


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_sum_is_rounded_once(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = torch.randn(ELEMENTS).to(dtype)
    update = proposal(torch.randn(ELEMENTS) * 0.01, "nearest")
    expected = (weight.float() + 0.5 * update.delta(span_of(weight))).to(dtype)

    assert update.add is not None
    update.add(weight, update.delta(span_of(weight)), 0.5)

    assert torch.equal(expected, weight)


def test_what_is_less_than_a_digit_is_kept_on_average() -> None:
    lost, kept = torch.ones(ELEMENTS).bfloat16(), torch.ones(ELEMENTS).bfloat16()
    delta = torch.full((ELEMENTS,), 0.0005)  # a digit after 1 is 2**-7
    for weight, rounding in ((lost, "nearest"), (kept, "stochastic")):
        update = proposal(delta, rounding)
        assert update.add is not None
        update.add(weight, delta, 1.0)

    assert torch.equal(torch.ones(ELEMENTS).bfloat16(), lost)
    assert kept.float().mean().item() == pytest.approx(1.0005, abs=1e-4)


def span_of(weight: torch.Tensor) -> Span:
    return Span("weight", tuple(weight.shape), weight.dtype, "device", trainable=True)


def test_the_core_lets_an_update_add_itself() -> None:
    from support import tiny_trainer

    from neaptide import Update

    seen: list[float] = []

    def add(weight: torch.Tensor, delta: torch.Tensor, scale: float) -> None:
        seen.append(scale)
        weight.add_(delta, alpha=2 * scale)

    trainer, *_ = tiny_trainer()
    with trainer:
        trained = [weight for weight in trainer.model.parameters() if weight.requires_grad]
        before = [weight.detach().clone() for weight in trained]
        apply(trainer.store, Update(1, lambda span: torch.ones(span.shape), add), 0.25)
        after = [weight.detach().clone() for weight in trained]

    assert [0.25] * len(before) == seen
    assert all(torch.equal(old + 0.5, new) for old, new in zip(before, after, strict=True))
