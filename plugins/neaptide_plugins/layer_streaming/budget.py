"""Computes from shapes, before any allocation, the memory that streaming will need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide.devices import allocator_count
from neaptide.io.units import size
from neaptide_toolkit.machine.devices import free_bytes
from neaptide_toolkit.offload import BufferLayout

from .tiers.disk import least
from .updates.blockwise import state_tensors
from .weights.blocks import owned_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch import nn

    from .settings import StreamingSettings


@attrs.frozen
class StreamingPlan:
    """Bytes to allocate, by use."""

    host: dict[str, int]
    """New allocations in RAM.

    For weights that are in RAM already, only the bytes of the largest block are added.
    """
    device: dict[str, int]
    """New allocations on the device, such as slots and buffers for gradients."""
    homes: int
    """Bytes of all weights and optimizer state that stream."""


def plan(
    named: Sequence[tuple[str, nn.Module]],
    outside: set[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    settings: StreamingSettings,
    *,
    adopted: bool,
    in_place: bool,
    staged: bool,
) -> StreamingPlan:
    """Return the memory that streaming will allocate.

    Args:
        named: qualified name and module of each block.
        outside: parameters that do not stream.
        optimizer: the optimizer of the model; its state streams, too.
        settings: how to stream.
        adopted: whether the size of the optimizer's state is known before the first step.
        in_place: whether the device computes with the state where it is.
        staged: whether gradients are copied between the device and the host.
    """
    owned = owned_parameters(named, outside)
    weights = [BufferLayout.of(own).bytes for own in owned]
    trained = [
        BufferLayout.of([parameter for parameter in own if parameter.requires_grad]).bytes
        for own in owned
    ]
    states = [
        BufferLayout.of(*state_tensors(own, optimizer, split=settings.split_master)[1:]).bytes
        if adopted
        else 0
        for own in owned
    ]
    largest = max(weights, default=0)
    moving = [
        size
        for size, own in zip(weights, owned, strict=True)
        if any(parameter.device.type != "cpu" for parameter in own)
    ]
    host = {"one block's weights while they move": largest, "weights": sum(moving)}
    kept = sum(sorted(weights)[len(weights) - settings.resident :]) if settings.resident else 0
    device = {"slots": settings.max_active_layers * largest + kept}
    if not settings.in_backward:
        host["gradients"] = sum(trained)
        if staged:
            device["staged gradients"] = 2 * max(trained, default=0)
    else:
        device["one block's gradients"] = max(trained, default=0)
    host["optimizer state"] = sum(states)
    if settings.on_device and not in_place:
        device["optimizer slots"] = settings.optimizer_slots * max(states, default=0)
    return StreamingPlan(_nonzero(host), _nonzero(device), sum(weights) + sum(states))


def shortage(needed: Mapping[str, int], room: int | None, where: str) -> str | None:
    """Return a line that states the needed and the free memory, and how to save memory.

    Return None if there is enough memory.

    Args:
        needed: bytes by use.
        room: free bytes; None if unknown.
        where: `RAM` or the device's name.
    """
    total = sum(needed.values())
    if room is None or total <= room:
        return None
    parts = ", ".join(f"{what} {size(bytes_, 2)}" for what, bytes_ in needed.items())
    text = (
        f"streaming needs {size(total, 2)} ({total} bytes) more of {where}, of which "
        f"{size(room, 2)} ({room} bytes) is free: {parts}"
    )
    if "gradients" in needed:
        saved = size(needed["gradients"], 2)
        return f"{text}; update = 'in_backward' stores no gradients and saves {saved}"
    if "slots" in needed:
        return f"{text}; lower max_active_layers or resident, or choose smaller blocks"
    return f"{text}; an optimizer with less state helps (SGD, or momentum = 0)"


def spare_bytes(device: torch.device, gib: float | None) -> int:
    """Return the usable bytes of a device minus the most bytes that tensors have used so far.

    A tenth of the usable bytes is also subtracted, as a reserve. The number of usable bytes is at
    most `gib` GiB. The result is 0 if torch has no such counts, as on a CPU.
    """
    reserved = allocator_count(device, "memory_reserved")
    peak = allocator_count(device, "max_memory_allocated")
    if reserved is None or peak is None:
        return 0
    limit = least((free_bytes(device) or 0) + reserved, gib) or 0
    return max(0, limit - limit // 10 - peak)


def _nonzero(parts: dict[str, int]) -> dict[str, int]:
    return {what: bytes_ for what, bytes_ in parts.items() if bytes_}
