"""Makes the step of AdamW on split masters with one kernel, if the run has such a kernel.

A split master is a float32 weight that is stored in two parts: a bfloat16 weight and the lower 16
bits. Without a kernel the optimizer's own class makes every step. The kernel for a CPU gives the
bits of that class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import optim

from neaptide_kernels.adamw_split import adamw_split_step, has_kernel, runs_by_kernel

from .members import members
from .stepping import LO, Item, adopt_lo, settled, working

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOMENTS = ("exp_avg", "exp_avg_sq")


def left_by_kernels(optimizer: optim.Optimizer, items: Sequence[Item]) -> list[Item]:
    """Update the items that a kernel of this run supports, and return the other items.

    The run must have a kernel for the op `adamw_split_step`. A kernel supports an item if the item
    has `lo` and the optimizer is a plain `torch.optim.AdamW`. Weights and state agree with the
    results of `step_away` within the kernel's tolerance. Hooks do not run. The optimizer's state
    has the same entries as after `step_away`.
    """
    if type(optimizer) is not optim.AdamW or all(item.lo is None for item in items):
        return list(items)
    if not has_kernel():
        return list(items)
    left: list[Item] = []
    known: set[int] = set()
    for number, found in members(optimizer, [item.parameter for item in items]).items():
        group, own = optimizer.param_groups[number], set(map(id, found))
        known |= own
        by_count: dict[float, list[Item]] = {}
        for item in items:
            if id(item.parameter) in own:
                by_count.setdefault(_count(optimizer, item), []).append(item)
        for count, alike in by_count.items():
            fits = [item for item in alike if _plain(group) and item.lo is not None]
            if not _taken(optimizer, group, count, fits):
                fits = []
            left += [item for item in alike if item not in fits]
    return left + [item for item in items if id(item.parameter) not in known]


def _plain(group: Mapping[str, Any]) -> bool:
    return not (group["amsgrad"] or group["foreach"])


def _kept(optimizer: optim.Optimizer, item: Item) -> dict[str, Any]:
    state: dict[str, Any] = optimizer.state.get(item.parameter, {})
    return {name: value for name, value in state.items() if name != LO}


def _count(optimizer: optim.Optimizer, item: Item) -> float:
    """Return the number of the item's next step, counted from 1."""
    return float(_kept(optimizer, item).get("step", 0.0)) + 1


@torch.no_grad()
def _taken(
    optimizer: optim.Optimizer, group: Mapping[str, Any], count: float, items: Sequence[Item]
) -> bool:
    """Update `items` with a kernel, if a kernel supports them; return whether one does.

    All items are in the parameter group `group`, and `count` is the number of their next step.
    """
    if not items:
        return False
    device = items[0].weight.device
    rate = group["lr"]
    if isinstance(rate, torch.Tensor):
        rate = rate.detach().to(device).reshape(())
    else:
        # Fill the tensor on the device: a copy from the host would wait for the device.
        rate = torch.full((), rate, dtype=torch.float64, device=device)
    arguments = (
        [item.weight.detach() for item in items],
        [item.lo for item in items],
        *([item.state[name] for item in items] for name in _MOMENTS),
        [item.gradient.detach() for item in items],
        rate,
        torch.full((), count, dtype=torch.float32, device=device),
        *map(float, group["betas"]),
        group["eps"],
        group["weight_decay"],
        group["maximize"],
        bool(group["fused"]),
    )
    if not runs_by_kernel(arguments):
        return False
    states = [_ready(optimizer, item) for item in items]
    adamw_split_step(*arguments)
    for item, state in zip(items, states, strict=True):
        state["step"] += 1
        optimizer.state.setdefault(item.parameter, {}).update(settled(item, state))
    return True


def _ready(optimizer: optim.Optimizer, item: Item) -> dict[str, Any]:
    """Copy the optimizer's state into the item's tensors, and return the state for the step."""
    adopt_lo(item, optimizer.state)
    kept = _kept(optimizer, item)
    if kept:  # a loaded count of a fused optimizer is on the device, where it is slow to read
        return working(item, kept, fused=False) | {"step": kept["step"].cpu()}
    counts = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
    first = {"step": torch.zeros((), dtype=counts, device="cpu")}
    return first | {name: item.state[name].zero_() for name in _MOMENTS}
