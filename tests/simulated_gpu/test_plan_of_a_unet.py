"""The plan of a UNet is near what it takes of a simulated GPU, resident and streamed."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from diffusion import PARTS, batch_of, loss_of, unet

from neaptide import HybridTrainer, Task
from neaptide.hooks.enabling import configured
from neaptide_toolkit.dry_run.running import dry_run

STACKS: dict[str, dict[str, Any]] = {
    "checkpointing": {"activation-checkpointing": {"blocks": PARTS, "interval": 1}},
    "streaming": {"layer-streaming": {"resident": 0, "blocks": PARTS, "update": "in_backward"}},
}


def wide() -> Task:
    return Task(unet(block_out_channels=(64, 128, 192), attention_head_dim=(2, 4, 6)), loss_of)


def batches() -> list[dict[str, torch.Tensor]]:
    return [{name: one.cpu() for name, one in batch_of(0, torch.float32).items()}]


def taken(config: Any) -> int:
    """Return the peak of the bytes that three steps allocate on the device."""
    gc.collect()  # earlier tests may have left cycles that hold memory
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    with HybridTrainer.from_config(config) as trainer:
        for _ in range(3):
            trainer.step(batches()[0], phase="full")
        return torch.cuda.max_memory_allocated() - held


@pytest.mark.parametrize("stack", STACKS)
def test_the_memory_is_that_of_the_run(stack: str) -> None:
    whole = {
        "model": {"name": f"{__name__}:wide"},
        "data": {"name": f"{__name__}:batches"},
        "plugins": STACKS[stack],
        "train": {"device": "cuda"},
    }
    config = configured(whole, ())[0]
    peak = taken(config)
    log = dry_run(config, None, "cuda").allocations
    steps = [found.bytes for during, found in log.peaks("device").items() if "full" in during]
    assert max(steps) == pytest.approx(peak, rel=0.04)
