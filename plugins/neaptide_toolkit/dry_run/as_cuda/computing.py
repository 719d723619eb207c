"""A run that computes on a device that is not there."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from neaptide import Task
from neaptide.plugin import sole
from neaptide.run import assembly
from neaptide.run.feed import moved
from neaptide_toolkit.dry_run.allocations import DEVICE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from neaptide.config import RunConfig
    from neaptide_toolkit.dry_run.allocations import AllocationLog


@contextmanager
def computing_on_device(log: AllocationLog) -> Iterator[None]:
    """Let a run compute on `DEVICE`, though its tensors say that they are on `cpu`.

    A batch, or each part of it, moves there where a loss is computed, as in a run on a GPU.
    """
    choose_device, build_task = assembly.choose_device, assembly.build_task

    def build(config: RunConfig, hooks: Any) -> Task:
        task = build_task(config, hooks)
        loss_fn = sole(assembly.LOSS_GROUP)(task.loss_fn, None)

        def loss(model: torch.nn.Module, batch: Any) -> Any:
            before, log.kind = log.kind, "batch"
            here = moved(batch, DEVICE)
            log.kind = before
            return loss_fn(model, here)

        return Task(task.module, loss)

    assembly.choose_device = lambda name, model: DEVICE  # noqa: ARG005 - their names are asked
    assembly.build_task = build
    try:
        yield
    finally:
        assembly.choose_device, assembly.build_task = choose_device, build_task


def as_cuda_steps(optimizer: torch.optim.Optimizer, log: AllocationLog) -> None:
    """Compute all tensors of a group at once, PyTorch's default where all of them are on CUDA."""
    for group in optimizer.param_groups:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = not any(map(log.is_on_host, group["params"]))
