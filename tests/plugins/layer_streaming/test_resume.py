"""A streamed run resumes to the bit, killed or saved, in every way of updating."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import DEVICE
from torch import nn
from torch.nn import functional

from neaptide import HybridTrainer

if TYPE_CHECKING:
    from pathlib import Path

WAYS: dict[str, dict[str, Any]] = {
    "cpu": {},
    "device": {"optimizer_on": "device"},
    "in backward": {"update": "in_backward"},
    "lagged": {"update": "in_backward", "clip": "lagged"},
    "per tensor": {"update": "in_backward", "clip": "per_tensor"},
    "split": {"update": "in_backward", "master": "split"},
    "split, stored": {"master": "split", "optimizer_on": "device"},
    "inputs": {"inputs": "host", "resident": 1},
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(8, 8), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.layer(x)).tanh()


def trainer_of(way: str) -> tuple[HybridTrainer, list[torch.Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), *[Block() for _ in range(4)])
    if "split" in way:
        model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train = {"clip_norm": 0.05} if WAYS[way].get("clip") else {}
    config = {"train": train, "plugins": {"layer-streaming": WAYS[way]}}

    def loss(net: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(net(x).float(), torch.ones(len(x), 8, device=DEVICE))

    dtype = next(model.parameters()).dtype
    given = torch.randn(10, 4, 8, generator=torch.Generator().manual_seed(1))
    batches = list(given.to(DEVICE, dtype))
    return HybridTrainer(model, optimizer, loss_fn=loss, config=config), batches


@pytest.mark.parametrize("way", WAYS)
def test_what_follows_a_resume_is_what_would_have_followed(way: str, tmp_path: Path) -> None:
    trainer, batches = trainer_of(way)
    with trainer:
        for number, batch in enumerate(batches, start=1):
            trainer.step(batch)
            if number == 5:
                trainer.save(tmp_path / "middle")
        expected = trainer.digest()
        states = trainer.optimizer.state_dict()
    again, batches = trainer_of(way)
    with again:
        again.step(batches[0])  # a state that the checkpoint has to take the place of
        again.load(tmp_path / "middle")
        for batch in batches[5:]:
            again.step(batch)
        assert expected == again.digest()
    if "split" in way:
        assert torch.int16 == states["state"][2]["lo"].dtype
        assert torch.float32 == states["state"][2]["exp_avg"].dtype


@pytest.mark.parametrize("way", ["in backward", "lagged"])
def test_losses_that_are_not_finite_leave_the_weights_alone(way: str) -> None:
    trainer, batches = trainer_of(way)
    with trainer:
        trainer.step(batches[0])
        before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        result = trainer.step(torch.full_like(batches[0], torch.nan))
        assert not result.updated
        trainer.store.drain()
        after = trainer.model.state_dict()
        assert [] == [name for name in before if not torch.equal(before[name], after[name])]
        assert trainer.step(batches[1]).updated


def test_a_scheduler_and_the_users_own_state_dict_work() -> None:
    found = []
    for way in ("cpu", "device", "in backward"):
        trainer, batches = trainer_of(way)
        scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 2, 0.5)
        with trainer:
            losses = []
            for batch in batches:
                losses.append(trainer.step(batch).loss)
                scheduler.step()
            trainer.store.drain()
            state = trainer.optimizer.state_dict()
            trainer.optimizer.load_state_dict(state)
            losses.append(trainer.step(batches[0]).loss)
        found.append((losses, state))
    for losses, state in found[1:]:
        assert found[0][0] == losses
        assert found[0][1]["param_groups"] == state["param_groups"]
        for index, values in found[0][1]["state"].items():
            for name, value in values.items():
                assert torch.equal(value.cpu(), state["state"][index][name].cpu())
