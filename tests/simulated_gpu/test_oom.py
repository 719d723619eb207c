"""Memory of the device that runs out in a step: a line that says why, or smaller pieces."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import simulated_gpu
import torch
from on_device import DEVICE
from torch import nn
from torch.nn import functional

from neaptide import HybridTrainer

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH, BATCH, STEPS = 64, 1024, 3
MIB = 2**20


class Wide(nn.Module):
    """Needs far more memory for a sample in it than for a sample that goes in or out."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 32 * WIDTH), nn.Linear(32 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(x)).tanh())


@contextmanager
def capacity(spare: int) -> Iterator[None]:
    """Let the device have so many bytes more than are in use."""
    torch.cuda.empty_cache()
    before = simulated_gpu.rates()["capacity"]
    simulated_gpu.configure(capacity=torch.cuda.memory_reserved() + spare)
    try:
        yield
    finally:
        simulated_gpu.configure(capacity=before)


def trained(spare: int, plugins: dict[str, Any]) -> tuple[HybridTrainer, list[float]]:
    torch.manual_seed(0)
    model = nn.Sequential(*[Wide() for _ in range(3)])
    batches = [torch.randn(BATCH, WIDTH) for _ in range(STEPS)]
    if not plugins:
        model.to(DEVICE)
    trainer = HybridTrainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        loss_fn=lambda net, x: functional.mse_loss(net(x), torch.zeros_like(x)),
        config={"train": {"device": "cuda"}, "plugins": plugins},
    )
    with capacity(spare), trainer:
        losses = [trainer.step(batch.to(DEVICE)).loss for batch in batches]
    return trainer, losses


def test_a_step_that_does_not_fit_says_what_was_asked_for_and_what_is_there() -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"CUDA out of memory\. Tried to allocate"):
        trained(24 * MIB, {})


def test_a_streamed_step_that_does_not_fit_goes_on_in_pieces_with_the_same_losses() -> None:
    plugins = {"layer-streaming": {}}
    whole, plain = trained(512 * MIB, plugins)
    split, losses = trained(24 * MIB, plugins)
    assert losses == pytest.approx(plain, rel=1e-5)
    pieces = [
        [unit.micro_batches for unit in one.store.streaming.units]  # type: ignore[attr-defined]  # the plugin's store
        for one in (whole, split)
    ]
    assert pieces[0] == [1, 1, 1]
    assert min(pieces[1]) > 1


def test_what_no_piece_fits_ends_in_one_line_that_says_where() -> None:
    with pytest.raises(torch.OutOfMemoryError) as failed:
        trained(3 * MIB // 2, {"layer-streaming": {}})
    text = str(failed.value)
    assert "\n" not in text
    assert "out of memory in full, " in text
