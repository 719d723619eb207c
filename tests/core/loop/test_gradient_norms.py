"""When the gradient norm is measured; that it changes no bit, and waits for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from support import tiny_trainer
from torch import nn

from neaptide import HybridTrainer
from neaptide.api.parameters import ParameterStore
from neaptide.loop import update

if TYPE_CHECKING:
    import pytest


def plain(steps: int = 30, size: int = 4, **train: Any) -> HybridTrainer:
    """Return a trainer of one linear layer."""
    torch.manual_seed(0)
    model = nn.Linear(size, size)
    return HybridTrainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        loss_fn=lambda model, batch: model(batch).square().mean(),
        config={"train": {"steps": steps, **train}},
    )


def measured(trainer: HybridTrainer, steps: int = 21) -> list[int]:
    """Return the updates whose gradient norm was measured."""
    with trainer:
        size = trainer.model.weight.shape[1]
        results = [trainer.step(torch.ones(2, size)) for _ in range(steps)]
        return [result.step for result in results if result.grad_norm is not None]


def test_every_tenth_norm_is_measured_by_default() -> None:
    assert [10, 20] == measured(plain())


def test_every_norm_is_measured_where_it_is_asked_for() -> None:
    assert list(range(1, 22)) == measured(plain(grad_norm=True))
    assert list(range(1, 22)) == measured(plain(clip_norm=1.0))


def test_every_norm_of_a_large_model_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "_LARGE", 4 * 4 + 4)
    assert list(range(1, 22)) == measured(plain())
    monkeypatch.setattr(update, "_LARGE", 4 * 4 + 5)
    assert [10, 20] == measured(plain())


def test_frozen_weights_do_not_make_a_model_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "_LARGE", 16)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].requires_grad_(requires_grad=False)
    trainer = HybridTrainer(model, loss_fn=lambda model, batch: model(batch).square().mean())
    with trainer:
        norms = [trainer.step(torch.ones(2, 4)).grad_norm for _ in range(10)]
    assert [True] * 9 + [False] == [norm is None for norm in norms]


def test_measuring_a_norm_changes_no_bit() -> None:
    weights = []
    for grad_norm in (False, True):
        trainer, batches = tiny_trainer({"train": {"steps": 12, "grad_norm": grad_norm}})
        with trainer:
            trainer.fit(batches)
            weights.append([p.detach().clone() for p in trainer.model.parameters()])
    assert all(map(torch.equal, *weights))


def test_finite_gradients_are_applied_though_their_norm_overflows() -> None:
    results = []
    train: dict[str, Any]
    for train in ({"grad_norm": True}, {}, {"clip_norm": 1.0}):
        model = nn.Linear(4, 4, bias=False)
        nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-25)
        trainer = HybridTrainer(
            model,
            optimizer,
            loss_fn=lambda model, batch: 1e25 * model(batch).mean(),
            config={"train": train},
        )
        with trainer:
            results.append(trainer.step(torch.ones(2, 4)).updated)
    # The gradients are finite, the square of one is not. Only clipping needs the norm itself.
    assert [True, True, False] == results


def test_a_norm_is_read_with_the_row_of_its_update(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    norm_of = ParameterStore.gradient_norm

    class Counting(torch.Tensor):
        def item(self) -> float:
            asked.append("read")
            return super().item()

    trainer = plain(check_finite=False)
    store = trainer.store
    monkeypatch.setattr(
        type(store),
        "gradient_norm",
        lambda self: torch.Tensor._make_subclass(Counting, norm_of(self)),
    )
    with trainer:
        for step in range(1, 12):
            trainer.step(torch.ones(2, 4))
            assert (1 if step >= 10 else 0) == len(asked)  # `late` reads on a CPU, once
