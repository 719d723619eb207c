"""The memory of a process that has parts of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neaptide_toolkit.optimizer_state import state_bytes
from neaptide_toolkit.tensors import nested_tensors, tensor_bytes

from .config import REGATHERS, Stage
from .fully_sharded import units
from .shard_store import ShardStore

if TYPE_CHECKING:
    from torch import nn

    from neaptide import Ledger, ParameterStore


def divided(
    ledger: Ledger, model: nn.Module, store: ParameterStore, stage: Stage, size: int
) -> Ledger:
    """Return the ledger of one of `size` processes, from that of a run in one process.

    The copy of the weights that undoes a jump stays whole.
    """
    ledger = ledger.move("optimizer.state", "device", None)
    ledger = ledger.add("sharding", "optimizer.state", "device", _state_of(store, size))
    if not isinstance(store, ShardStore):
        return ledger
    whole = {span.name: span.bytes for span in store.spans()}
    own = sum(one.nbytes for one in store.parameters.values()) / max(1, sum(whole.values()))
    ledger = ledger.scale("weights", own).scale("gradients", own)
    blocks = [
        sum(whole.get(f"{name}.{inner}", 0) for inner, _ in block.named_parameters())
        for name, block in units(model)
    ]
    gathered = sum(whole.values())
    if stage in REGATHERS:  # the block that runs, and the next
        gathered += min(0, sum(sorted(blocks)[-2:]) - sum(blocks))
    return ledger.add(
        "sharding", "weights.gathered", "device", gathered, ("forward", "backward", "evaluate")
    )


def _state_of(store: ParameterStore, size: int) -> int:
    held = tensor_bytes(nested_tensors(dict(store.optimizer.state)))
    if held:
        return held
    expected = sum(state_bytes(store.optimizer).values())
    return expected if isinstance(store, ShardStore) else -(-expected // size)
