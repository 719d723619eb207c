"""Where streaming puts what the core counts on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from neaptide import Ledger

    from .streaming import Streaming


def account(ledger: Ledger, owner: str, streaming: Streaming, *, backward: bool) -> Ledger:
    """Return the ledger of a phase: weights are on the host already, by the store's spans."""
    trained = [
        parameter
        for block in streaming.blocks
        for parameter in block.parameters
        if parameter.requires_grad
    ]
    if backward:
        # What is gathered leaves the device block by block; the core has counted all of it there.
        whole = ledger.total(kind="gradients")
        streamed = _bytes(trained)
        ledger = ledger.scale("gradients", (whole - streamed) / whole if whole else 0.0)
        largest = max(
            _bytes(parameter for parameter in block.parameters if parameter.requires_grad)
            for block in streaming.blocks
        )
        ledger = ledger.add(owner, "gradients.block", "device", largest, ("backward",))
    state = _bytes(
        value
        for parameter in trained
        for value in streaming.optimizer.state.get(parameter, {}).values()
        if hasattr(value, "nbytes")
    )
    whole = ledger.total(kind="optimizer.state")
    ledger = ledger.scale("optimizer.state", (whole - state) / whole if whole else 0.0)
    ledger = ledger.add("core", "optimizer.state", "host", state)
    ledger = ledger.add(owner, "gradients", "host", _bytes(streaming.gradients.stored()))
    ledger = ledger.add(owner, "slots", "device", _bytes(streaming.residency.buffers()))
    ledger = ledger.add(owner, "staging", "device", _bytes(streaming.gradients.buffers()))
    if streaming.updates is not None:
        held = _bytes(streaming.updates.buffers())
        ledger = ledger.add(owner, "optimizer.slots", "device", held)
    return ledger


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
