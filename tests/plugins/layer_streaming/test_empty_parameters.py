"""Blocks with parameters of no elements train, and resume, as whole runs do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import DEVICE, ROUNDS_OTHERWISE
from torch import nn

from neaptide import HybridTrainer

if TYPE_CHECKING:
    from pathlib import Path


class Empty(nn.Module):
    """A block whose only parameter is empty."""

    def __init__(self) -> None:
        super().__init__()
        self.empty = nn.Parameter(torch.empty(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.empty.sum()


class Narrow(nn.Module):
    """A block with empty parameters of two dimensions between others."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(4, 0), nn.Linear(0, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.up(self.down(x))


class Tail(nn.Module):
    """A block whose last parameter is empty."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(4, 4)
        self.empty = nn.Parameter(torch.empty(0, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.map(x) * self.empty.prod()


def digest(
    block: type[nn.Module],
    settings: dict[str, Any] | None,
    steps: range,
    load: Path | None = None,
    save: Path | None = None,
) -> tuple[str, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(*(block() for _ in range(3))), nn.Linear(4, 1))
    model.to(DEVICE)
    kind = (
        torch.optim.SGD if ROUNDS_OTHERWISE else torch.optim.AdamW
    )  # a CPU rounds SGD's update as a GPU
    optimizer = kind(model.parameters(), lr=0.1)
    plugins = {} if settings is None else {"layer-streaming": {"blocks": "0", **settings}}
    trainer = HybridTrainer(
        model,
        optimizer,
        loss_fn=lambda model, batch: model(batch).square().mean(),
        config={"plugins": plugins},
    )
    with trainer:
        if load is not None:
            trainer.load(load)
        for step in steps:
            batch = torch.randn(4, 4, generator=torch.Generator().manual_seed(step))
            trainer.step(batch.to(DEVICE))
        if save is not None:
            trainer.save(save)
        return trainer.digest(), {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("block", [Empty, Narrow, Tail])
@pytest.mark.parametrize("optimizer_on", ["cpu", "device"])
@pytest.mark.parametrize("mode", ["graph", "recompute"])
def test_empty_parameters_stream_and_resume(
    block: type[nn.Module], optimizer_on: str, mode: str, tmp_path: Path
) -> None:
    settings = {"mode": mode, "optimizer_on": optimizer_on}
    _, resident = digest(block, None, range(5))
    whole, weights = digest(block, settings, range(5))
    assert all(torch.equal(resident[name].cpu(), weights[name].cpu()) for name in resident)
    digest(block, settings, range(3), save=tmp_path / "saved")
    resumed, _ = digest(block, settings, range(3, 5), load=tmp_path / "saved")
    assert resumed == whole
