"""Steps of DeepSpeed with weights and state on a disk: ZeRO-3 and its NVMe offload, on a CPU.

    pip install -c constraints.txt wheel ninja
    pip install -c constraints.txt --no-build-isolation deepspeed

It builds its own extensions at the first use, some minutes, which needs `libaio-dev`.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch
    from torch import nn

_ALONE = {
    "DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511",
}  # fmt: skip
"""The environment of one process, as DeepSpeed's launcher sets it."""


def settings(folder: Path, width: int) -> dict[str, Any]:
    """Return a configuration: float32, all weights and state on the disk.

    Its pipelines of reads and writes end this run with an AssertionError. Requests of 8 MiB and
    more threads were slower than its own defaults.
    """
    on_disk = {"device": "nvme", "nvme_path": str(folder), "pin_memory": False}
    matrices = {"buffer_count": 16, "buffer_size": 4 * width**2 + 4096, "max_in_cpu": 0}
    block = 8 * width**2
    return {
        "train_micro_batch_size_per_gpu": 1,
        "steps_per_print": 1 << 30,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        "zero_optimization": {
            "stage": 3,
            "sub_group_size": block,
            "stage3_prefetch_bucket_size": block,
            "stage3_max_live_parameters": 4 * block,
            "stage3_max_reuse_distance": block,
            "offload_optimizer": on_disk | {"buffer_count": 4},
            "offload_param": on_disk | matrices,
        },
        "aio": {"block_size": 1 << 20, "queue_depth": 32, "overlap_events": True},
    }


def seconds_of_steps(
    build: Callable[[], nn.Module],
    loss_of: Callable[[Any, torch.Tensor], torch.Tensor],
    batches: list[torch.Tensor],
    folder: Path,
    width: int,
) -> list[float]:
    """Train on the batches; return the seconds of each step."""
    os.environ.update(_ALONE)
    import deepspeed  # noqa: PLC0415 - it reads the environment

    config = settings(folder, width)
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = build()
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    seconds = []
    for batch in batches:
        start = time.perf_counter()
        loss = loss_of(engine, batch)
        engine.backward(loss)
        engine.step()
        assert loss.isfinite()
        seconds.append(time.perf_counter() - start)
    return seconds
