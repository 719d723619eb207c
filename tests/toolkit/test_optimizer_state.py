"""The optimizer's state is estimated before the first update, as it is after it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from optimizers_of_torch import OPTIMIZERS
from support import DEVICE
from torch import nn

from neaptide import HybridTrainer, Ledger, ModelError
from neaptide_toolkit.optimizer_state import expected_state, state_bytes

OURS = ("adafactor", "adam-mini", "adam8bit", "lion", "lion8bit", "ademamix", "apollo", "muon")


class Net(nn.Module):
    def __init__(self, dtype: torch.dtype, width: int = 64) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width, dtype=dtype) for _ in range(4))
        self.head = nn.Linear(width, 3, dtype=dtype)
        self.frozen = nn.Parameter(torch.ones(width, dtype=dtype), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x)) * self.frozen
        return self.head(x)


def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).float().square().mean()


def net(dtype: torch.dtype = torch.float32, width: int = 64) -> Net:
    torch.manual_seed(0)
    return Net(dtype, width).to(DEVICE)


def ledgers(
    model: Net, optimizer: Any, plugins: dict[str, Any], name: str = "adamw"
) -> tuple[list[Ledger], list[Ledger]]:
    """Return the ledgers of Full and Predict, before the first update and after it."""
    config = {"plugins": plugins, "optimizer": {"name": name}}
    dtype = next(model.parameters()).dtype
    with HybridTrainer(model, optimizer, loss_fn=loss_fn, config=config) as trainer:
        state = torch.get_rng_state()
        before = [trainer.estimate_memory(phase) for phase in ("full", "predict")]
        assert torch.equal(state, torch.get_rng_state())
        assert not any(trainer.optimizer.state.values()) or "layer-streaming" in plugins
        trainer.step(torch.ones(4, model.head.in_features, dtype=dtype, device=DEVICE))
        return before, [trainer.estimate_memory(phase) for phase in ("full", "predict")]


def assert_foreseen(before: list[Ledger], after: list[Ledger]) -> None:
    whole = before[0].total(kind="optimizer.state")
    for early, late in zip(before, after, strict=True):
        for tier in ("device", "host"):
            found, expected = (
                each.total(kind="optimizer.state", tier=tier) for each in (early, late)
            )
            assert found == pytest.approx(expected, abs=0.02 * whole), tier
    assert before[0].total(kind="optimizer.state")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", OPTIMIZERS)
def test_of_every_optimizer_of_torch(form: str, dtype: torch.dtype) -> None:
    model = net(dtype)
    matrices = form.startswith("Muon")
    trained = [
        each
        for each in model.parameters()
        if each.requires_grad and (each.ndim == 2 or not matrices)
    ]
    optimizer = OPTIMIZERS[form](trained)
    eager = len(optimizer.state)  # Adagrad makes its state when it is made itself
    expected = state_bytes(optimizer)
    assert len(optimizer.state) == eager
    loss_fn(model, torch.ones(4, 64, dtype=dtype, device=DEVICE)).backward()
    optimizer.step()
    assert expected == state_bytes(optimizer)
    assert expected_state(optimizer) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OURS)
def test_of_every_optimizer_of_ours(name: str, dtype: torch.dtype) -> None:
    before, after = ledgers(net(dtype), None, {name: {}}, name)
    assert_foreseen(before, after)


WAYS: dict[str, dict[str, Any]] = {
    **{
        f"offload, {strategy}": {"optimizer-offload": {"strategy": strategy}}
        for strategy in ("none", "cpu", "pinned", "compress", "drop")
    },
    **{
        f"streaming, {settings}": {"layer-streaming": settings}
        for settings in (
            {"optimizer_on": "cpu"},
            {"optimizer_on": "device"},
            {"update": "in_backward", "clip": "none"},
        )
    },
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", WAYS)
def test_where_a_plugin_keeps_it(way: str, dtype: torch.dtype) -> None:
    model = net(dtype)
    trained = [each for each in model.parameters() if each.requires_grad]
    assert_foreseen(*ledgers(model, torch.optim.AdamW(trained), WAYS[way]))


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("way", [way for way in WAYS if way.startswith("streaming")])
def test_where_streaming_keeps_that_of_ours(way: str, name: str) -> None:
    # Wide, because each state tensor has a multiple of 256 bytes in a buffer.
    before, after = ledgers(net(width=256), None, WAYS[way] | {name: {}}, name)
    assert_foreseen(before, after)


def test_a_scheduler_and_hooks_do_not_see_the_step() -> None:
    model = net()
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    calls: list[Any] = []
    optimizer.register_step_pre_hook(lambda *given: calls.append(given))
    before = scheduler.state_dict()
    state_bytes(optimizer)
    assert calls == []
    assert scheduler.state_dict() == before
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (torch.optim.LBFGS, "missing 1 required positional argument: 'closure'"),
        (torch.optim.SparseAdam, "SparseAdam does not support dense gradients"),
    ],
)
def test_what_cannot_be_foreseen_is_refused_with_its_reason(make: Any, reason: str) -> None:
    model = net()
    optimizer = make([each for each in model.parameters() if each.requires_grad])
    with pytest.raises(ModelError, match=reason) as refused:
        state_bytes(optimizer)
    assert str(refused.value).startswith(f"the state of {make.__name__} is not known before")
    assert str(refused.value).endswith("estimate after one update")
