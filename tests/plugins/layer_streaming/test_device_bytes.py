"""What the device holds, by torch's own allocator: the slots, and no more than one block beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import DEVICE
from torch import nn

from neaptide import HybridTrainer
from neaptide_toolkit.testing import check_plugin, peak_of

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH, BATCH, BLOCKS = 128, 256, 16


class Block(nn.Module):
    """Saves two activations of four times its input's size, besides the input."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


WEIGHTS = 4 * (2 * 4 * WIDTH * WIDTH + 5 * WIDTH)
INPUT = 4 * BATCH * WIDTH
# Up's output, tanh's, and both of their gradients on the way back; in and out of the block.
ACTIVATIONS = 4 * 4 * INPUT + 4 * INPUT

WAYS: dict[str, dict[str, Any]] = {
    "stored": {},
    "in backward": {"update": "in_backward"},
    "pieces": {"micro_batches": 4},
    "inputs on the host": {"inputs": "host"},
}


def most_allocated(action: Callable[[], Any]) -> int:
    """Return the most bytes of `DEVICE` held at once during `action`, beyond those before."""
    if DEVICE.type == "cpu":
        return peak_of(action)
    api = torch.get_device_module(DEVICE)
    api.reset_peak_memory_stats()
    before = api.memory_allocated()
    action()
    return api.max_memory_allocated() - before


def peak(settings: dict[str, Any] | None) -> int:
    """Return the most bytes that a third step allocates beyond what was there before it."""
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(BLOCKS)]).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    streaming = {} if settings is None else {"layer-streaming": {"resident": 0, **settings}}
    config = {"plugins": streaming}
    batch = torch.randn(BATCH, WIDTH).to(DEVICE)
    with HybridTrainer(
        model, optimizer, loss_fn=lambda net, x: net(x).square().mean(), config=config
    ) as trainer:
        for _ in range(2):
            trainer.step(batch)
        return most_allocated(lambda: trainer.step(batch))


@pytest.mark.parametrize("way", WAYS)
def test_a_step_takes_one_blocks_gradients_and_activations_and_the_inputs(way: str) -> None:
    settings = WAYS[way]
    activations = ACTIVATIONS
    if "micro_batches" in settings:
        # The pieces' outputs are joined, and a piece's gradient is there when it is added.
        pieces, largest = settings["micro_batches"], WEIGHTS // 2
        activations = ACTIVATIONS // pieces + 4 * INPUT + largest
    waiting = BLOCKS * INPUT
    if DEVICE.type != "cpu" and settings.get("inputs") == "host":  # a CPU has but one allocator
        waiting = 3 * INPUT  # the block's, the next one's, and one on its way
    rounding = 64 << 10
    assert peak(settings) <= WEIGHTS + activations + waiting + rounding


def test_resident_training_takes_several_times_as_much() -> None:
    """The bound above is no bound of the model's size."""
    bound = WEIGHTS + ACTIVATIONS + BLOCKS * INPUT
    assert peak(None) > 2 * bound


def test_the_estimate_knows_the_phases_in_which_every_block_stays() -> None:
    check_plugin("layer-streaming", {"phases": ["full", "correct"]}, laws=["estimate-is-allocated"])
