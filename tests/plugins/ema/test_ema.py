from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import stranger
from torch import nn

from neaptide import HybridTrainer, Plugin, Update, hookimpl
from neaptide_plugins.ema.average import decay_at, shift, start, update

pytestmark = pytest.mark.usefixtures("on_device")


@given(st.floats(0.0, 0.9999), st.lists(st.floats(-10, 10), min_size=1, max_size=30))
def test_the_average_is_the_closed_formula(decay: float, values: list[float]) -> None:
    average = start(torch.tensor([values[0]], dtype=torch.float64), None)
    for value in values[1:]:
        update(average, torch.tensor([value], dtype=torch.float64), decay)
    last = len(values) - 1
    expected = decay**last * values[0] + sum(
        (1 - decay) * decay ** (last - place) * value
        for place, value in enumerate(values)
        if place > 0
    )
    torch.testing.assert_close(average, torch.tensor([expected], dtype=torch.float64))


@given(st.integers(1, 10_000), st.floats(0.0, 0.9999))
def test_warmup_only_lowers_the_decay(step: int, decay: float) -> None:
    assert decay == decay_at(step, decay, warmup=False)
    assert decay_at(step, decay, warmup=True) == min(decay, (1 + step) / (10 + step))


def test_a_half_precision_weight_is_averaged_in_float32() -> None:
    average = start(torch.ones(2, dtype=torch.bfloat16), None)
    assert torch.float32 == average.dtype
    shift(average, torch.full((2,), 0.25, dtype=torch.bfloat16))
    assert [1.25, 1.25] == average.tolist()


def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def trainer_of(
    decay: float = 0.5, plugins: Any = (), **config: Any
) -> tuple[HybridTrainer, nn.Linear]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"plugins": {"ema": {"decay": decay, "warmup": False}}, **config}
    return HybridTrainer(model, optimizer, loss_fn=loss_fn, config=settings, plugins=plugins), model


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9])
def test_evaluation_uses_the_average_and_gives_the_weights_back(decay: float) -> None:
    trainer, model = trainer_of(decay)
    batch = torch.randn(8, 3)
    with trainer:
        average = model.weight.detach().clone()
        for _ in range(6):
            trainer.step(batch)
            average = decay * average + (1 - decay) * model.weight.detach()
        weights = model.weight.detach().clone()
        evaluated = trainer.evaluate([batch])
        assert torch.equal(weights, model.weight)
    expected = nn.functional.linear(batch, average).square().mean().item()
    assert expected == pytest.approx(evaluated, rel=1e-5)


def test_the_weights_come_back_when_an_evaluation_fails() -> None:
    trainer, model = trainer_of()
    with trainer:
        trainer.step(torch.randn(8, 3))
        weights = model.weight.detach().clone()
        with pytest.raises(RuntimeError, match="shapes"):
            trainer.evaluate([torch.randn(8, 4)])
        assert torch.equal(weights, model.weight)


class Nudge(Plugin[Any]):
    @hookimpl
    def propose_update(self) -> Update:
        return Update(1, lambda span: torch.full(span.shape, 0.125))


def test_a_jump_shifts_the_average_by_what_the_weights_moved() -> None:
    phases = {"warmup": {"steps": 1}, "full": {"steps": 1}, "predict": {"rise": 100.0}}
    spec = stranger(Nudge, claims={"predictor"})
    trainer, model = trainer_of(0.5, [spec], phases=phases)
    batch = torch.randn(8, 3)
    with trainer:
        average = model.weight.detach().clone()
        for _ in range(2):
            trainer.step(batch)
            average = average.lerp(model.weight.detach(), 0.5)
        before = model.weight.detach().clone()
        result = trainer.step(batch)
        assert result.was_predicted
        moved = trainer.hooks.plugins["ema"].state_dict()["averages"]["weight"]
    gradient = torch.autograd.grad(
        nn.functional.linear(batch, (shifted := (before + 0.125).requires_grad_())).square().mean(),
        shifted,
    )[0]
    after = shifted.detach() - 0.1 * gradient
    torch.testing.assert_close(moved, (average + 0.125).lerp(after, 0.5))
