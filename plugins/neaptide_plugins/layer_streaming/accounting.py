"""Computes the memory that streaming uses on each tier (device, host).

The results are used in the memory ledger (the estimate of the memory that a run uses) and in the
texts of out-of-memory errors.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from neaptide.devices import allocator_count
from neaptide_toolkit.offload.disk import region_of
from neaptide_toolkit.optimizer_state import state_bytes

from .calls.recompute import Recomputed
from .oom import explanation, is_out_of_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from neaptide import Ledger

    from .streaming import Streaming


def account(
    ledger: Ledger, owner: str, streaming: Streaming, *, backward: bool, all_stay: bool
) -> Ledger:
    """Return the memory ledger of a phase.

    The core has already counted the blocks' weights on the host, because the parameter store
    reports the tier `host` for these weights.

    Args:
        ledger: the ledger with the entries of the core and of earlier plugins.
        owner: the plugin's name.
        streaming: the streamed model.
        backward: whether backward passes run in the phase.
        all_stay: whether all blocks stay on the device in the phase.
    """
    trained = [
        parameter
        for block in streaming.blocks
        for parameter in block.parameters
        if parameter.requires_grad
    ]
    if backward:
        # The core counts all gradients on the device, but only one block's gradients are on the
        # device at once.
        whole = ledger.total(kind="gradients")
        streamed = _bytes(trained)
        ledger = ledger.scale("gradients", (whole - streamed) / whole if whole else 0.0)
        largest = max(
            _bytes(parameter for parameter in block.parameters if parameter.requires_grad)
            for block in streaming.blocks
        )
        ledger = ledger.add(owner, "gradients.block", "device", largest, ("backward",))
    of_state = state_bytes(streaming.optimizer)
    state = sum(of_state.get(parameter, 0) for parameter in trained)
    whole = ledger.total(kind="optimizer.state")
    ledger = ledger.scale("optimizer.state", (whole - state) / whole if whole else 0.0)
    stored = () if streaming.updates is None else streaming.updates.stored()
    files = min(state, _bytes(one for one in stored if region_of(one) is not None))
    ledger = ledger.add("core", "optimizer.state", "host", state - files)
    if streaming.homes.files:
        ledger = ledger.add("core", "optimizer.state", "disk", files)
        there = [block for block in streaming.blocks if region_of(block.host) is not None]
        weights = _bytes(parameter for block in there for parameter in block.parameters)
        ledger = ledger.move("weights", "host", "disk", weights)
    ledger = ledger.add(owner, "gradients", "host", _bytes(streaming.gradients.host.stored()))
    unused = sum(block.homes[place].nbytes for block in streaming.blocks for place in block.apart)
    if unused:  # the weights are where the user has put them
        ledger = ledger.add(owner, "weights.unused", "host", unused)
    slots = _bytes(slot.flat for slot in streaming.residency.slots)
    kept = streaming.blocks if all_stay else streaming.resident
    slots += sum(block.layout.bytes for block in kept)
    ledger = ledger.add(owner, "slots", "device", slots)
    ledger = ledger.add(owner, "staging", "device", _bytes(streaming.gradients.host.buffers()))
    if streaming.updates is not None:
        held = _bytes(streaming.updates.buffers())
        ledger = ledger.add(owner, "optimizer.slots", "device", held)
    return ledger


def held(streaming: Streaming) -> dict[str, int]:
    """Return the bytes on the device for each use, such as slots and stored block inputs."""
    updates = streaming.updates
    waiting = sum(unit.kept_bytes for unit in _recomputed(streaming))
    return {
        "slots": _bytes(streaming.residency.buffers()),
        "staged gradients": _bytes(streaming.gradients.host.buffers()),
        "optimizer slots": 0 if updates is None else _bytes(updates.buffers()),
        "block inputs": waiting,
    }


def savings(streaming: Streaming) -> dict[str, int]:
    """Return, for each setting that can be lowered, the bytes that a lower value would save."""
    largest = max(block.layout.bytes for block in streaming.blocks)
    needed = max(len(block.needs) for block in streaming.blocks)
    slots, device = len(streaming.residency.slots), streaming.residency.device
    saved = {}
    if slots > max(needed, 1):
        saved[f"max_active_layers = {slots - 1}"] = largest
    if streaming.resident:
        saved["resident = 0"] = sum(block.layout.bytes for block in streaming.resident)
    units = _recomputed(streaming)
    if units and not streaming.settings.inputs_on_host:
        saved["inputs = 'host'"] = held(streaming)["block inputs"]
    peak = allocator_count(device, "max_memory_allocated")
    if units and peak is not None:
        activations = peak - sum(held(streaming).values())
        pieces = max(unit.micro_batches for unit in units)
        saved[f"micro_batches = {2 * pieces}"] = max(0, activations) // 2
    return saved


@contextmanager
def explained(streaming: Streaming, where: str) -> Iterator[None]:
    """Replace an out-of-memory error; the new text lists uses of memory and settings to lower.

    Args:
        streaming: the streamed model.
        where: the phase and the part of the step, such as `full, backward`, for the message.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        text = explanation(str(error), where, held(streaming), savings(streaming))
        raise torch.OutOfMemoryError(text) from error


def _recomputed(streaming: Streaming) -> list[Recomputed]:
    return [unit for unit in streaming.units if isinstance(unit, Recomputed)]


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
