"""Inputs of blocks wait on the disk: whatever their layout, and when there is no room in RAM."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import torch
from streamed_from_disk import WIDTH, batches, on_disk, trainer_of
from torch import nn

from neaptide import HybridTrainer
from neaptide_toolkit.offload.disk import disk_bytes

if TYPE_CHECKING:
    from pathlib import Path


class Strided(nn.Module):
    """A block whose input, and what it hands on, has gaps, is a conjugate, is empty or 0-dim."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.layer(x).tanh() + sum(one.abs().sum() for one in others)
        wide = torch.stack([x, x], dim=-1)
        spun = torch.complex(x, x).conj()
        return wide[..., 1], x[:1].expand(3, WIDTH), spun, x[:0], x.mean(), x.t()


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Strided() for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        handed: tuple[torch.Tensor, ...] = (x,)
        for block in self.blocks:
            handed = block(*handed)
        return handed[0]


def test_inputs_of_any_layout_come_back_from_the_disk(tmp_path: Path) -> None:
    digests, held = [], []
    for inputs in ("host", "disk"):
        torch.manual_seed(0)
        settings = on_disk("in backward", tmp_path, inputs=inputs)
        model = Chain()
        trainer = HybridTrainer(
            model,
            torch.optim.AdamW(model.parameters(), lr=1e-2),
            loss_fn=lambda net, x: net(x).square().mean(),
            config={"plugins": {"layer-streaming": settings}},
        )
        with trainer:
            before = disk_bytes()
            for batch in batches():
                trainer.step(batch)
            digests.append(trainer.digest())
            held.append(disk_bytes() - before)
    assert digests[0] == digests[1]
    assert held[1] > held[0]


def test_inputs_are_on_the_disk_when_ram_gib_is_used_up(tmp_path: Path) -> None:
    held = {}
    gc.collect()
    before = disk_bytes()
    for inputs in ("host", "disk"):
        for ram in (0.0, 1.0):
            with trainer_of(on_disk("in backward", tmp_path, inputs=inputs, ram_gib=ram)) as own:
                own.step(batches()[0])
                held[inputs, ram] = disk_bytes() - before
            del own
            gc.collect()
    # The inputs of four blocks: the first block's are the batch through a layer.
    assert held["disk", 0.0] - held["host", 0.0] == 4 * batches()[0].nbytes
    assert held["disk", 1.0] == held["host", 1.0] == 0
