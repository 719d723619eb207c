"""The memory of a process that has parts of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide import PREDICT
from neaptide_toolkit.optimizer_state import state_bytes
from neaptide_toolkit.tensors import nested_tensors, tensor_bytes

from .fully_sharded import HALVES, elements, units
from .optimizer_shards import OptimizerShards
from .reducing import BUCKET
from .shard_store import ShardStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from neaptide import Ledger, ParameterStore, Phase
    from neaptide.api.spans import Span


def estimated(
    ledger: Ledger, phase: Phase, model: nn.Module, store: ParameterStore, size: int
) -> Ledger:
    """Return the ledger of one of `size` processes, from that of a run in one process."""
    if isinstance(store, ShardStore | OptimizerShards):
        ledger = _divided(ledger, model, store, size)
    if isinstance(store, ShardStore) or phase is PREDICT:
        return ledger
    return _added_up_at_once(ledger, store, size)


def _divided(
    ledger: Ledger, model: nn.Module, store: ShardStore | OptimizerShards, size: int
) -> Ledger:
    """Return the ledger of a process that has parts.

    The copy of the weights that undoes a jump stays whole.
    """
    ledger = ledger.move("optimizer.state", "device", None)
    tier = store.home.tier if isinstance(store, ShardStore) else "device"
    ledger = ledger.add("sharding", "optimizer.state", tier, _state_of(store, size))
    if not isinstance(store, ShardStore):
        return ledger
    if tier == "host":
        ledger = ledger.move("gradients", "device", tier)
        ledger = ledger.add("sharding", "pinned.rounding", tier, store.home.rounding)
    whole = {span.name: span for span in store.spans()}
    total = sum(span.bytes for span in whole.values())
    own = sum(one.nbytes for one in store.parameters.values()) / max(1, total)
    ledger = ledger.scale("weights", own).scale("gradients", own)
    blocks = [
        [
            whole[name]
            for inner, _ in block.named_parameters()
            if (name := f"{path}.{inner}") in whole
        ]
        for path, block in units(model)
    ]
    inside = {span.name for block in blocks for span in block}
    parts = [[span for span in whole.values() if span.name not in inside], *blocks]
    bytes_of, casts = store.gathering.bytes_of, store.gathering.dtype is not None
    held = _Held(
        [sum(map(bytes_of, part)) for part in parts],
        [sum(bytes_of(span) for span in part if span.trainable) for part in parts],
        [sum(span.bytes for span in part if span.trainable) for part in parts],
        [sum(_added_up(span, casts=casts) for span in part) for part in parts],
        store.copies.shards.size,
        regathers=store.gathering.again,
        in_ram=tier == "host",
        casts=casts,
    )
    kind, forward = "weights.gathered", held.in_forward()
    ledger = ledger.add("sharding", kind, "device", forward, ("forward", "evaluate"))
    return ledger.add("sharding", kind, "device", held.in_backward(), ("backward",))


def _added_up_at_once(ledger: Ledger, store: ParameterStore, size: int) -> Ledger:
    """Return `ledger` with the gradients that are added up at once, if they are not divided."""
    trained = [span.bytes for span in store.spans() if span.trainable]
    held = min(sum(trained), max(BUCKET, max(trained, default=0)))
    if isinstance(store, OptimizerShards):
        held += held // size  # then updated rows are sent from one buffer to another
    return ledger.add("sharding", "gradients.sum", "device", held, ("update",))


@attrs.frozen
class _Held:
    """What torch's `fully_shard` holds of the units, in the order in which a forward runs them.

    The model itself is the first unit: it has the weights outside of blocks, which it keeps.
    """

    weights: Sequence[int]
    """Bytes of each unit."""
    gradients: Sequence[int]
    """Bytes of its whole gradients."""
    kept: Sequence[int]
    """Bytes of the gradients that all processes together keep of it."""
    added_up: Sequence[int]
    """Bytes of the buffer from which they are added up."""
    size: int
    regathers: bool = attrs.field(kw_only=True)
    in_ram: bool = attrs.field(kw_only=True)
    """Whether rows and gradients of this process are in RAM. Then they are also copied."""
    casts: bool = attrs.field(kw_only=True)
    """Whether rows are cast before they are gathered. Then they are copied, too."""

    def in_forward(self) -> int:
        """Return the most bytes: of gathered weights, of their buffer, and of the one before."""
        return max(
            self._gathered(last)
            + self.weights[last]
            + max(self.weights[last - 1] if last else 0, self._copied(self.weights[last]))
            for last in range(len(self.weights))
        )

    def in_backward(self) -> int:
        """Return the most bytes, less the gradients of this process that are still to come."""
        return max(self._at(unit) for unit in range(len(self.weights)))

    def _at(self, unit: int) -> int:
        """Return what is held while the gradients of a unit are computed."""
        ahead = self.weights[unit - 1] if self.regathers and unit > 1 else 0
        before = self.added_up[unit + 1] if unit + 1 < len(self.weights) else 0
        gradients = self.gradients[unit] + (self.gradients[0] if unit else 0)
        to_come = 0 if self.in_ram else sum(self.kept[: unit + 1]) // self.size
        sums = self.added_up[unit] + self._rows(self.added_up[unit])
        buffer = max(self._gathered(unit) + before, self._gathered(unit, freed=True) + sums)
        return buffer + ahead + gradients - to_come

    def _copied(self, nbytes: int) -> int:
        """Return what is held of the rows of a unit until they are in the buffer."""
        return nbytes // self.size if self.casts else self._rows(nbytes)

    def _rows(self, nbytes: int) -> int:
        """Return what is on the device of the rows of a unit, while they are copied."""
        return nbytes // self.size if self.in_ram else 0

    def _gathered(self, unit: int, *, freed: bool = False) -> int:
        """Return the bytes of whole weights while a unit is at work, or after it has freed its."""
        if self.regathers:
            blocks = self.weights[unit] if unit and not freed else 0
        else:
            blocks = sum(self.weights[1 : unit + (not freed)])
        return blocks + (0 if freed and not unit else self.weights[0])


def _added_up(span: Span, *, casts: bool) -> int:
    """Return the bytes of a gradient where it is added up: of halves, and cast, in float32."""
    if not span.trainable:
        return 0
    return elements(span) * (4 if casts or span.dtype in HALVES else span.dtype.itemsize)


def _state_of(store: ParameterStore, size: int) -> int:
    held = tensor_bytes(nested_tensors(dict(store.optimizer.state)))
    if held:
        return held
    expected = sum(state_bytes(store.optimizer).values())
    return expected if isinstance(store, ShardStore) else -(-expected // size)
