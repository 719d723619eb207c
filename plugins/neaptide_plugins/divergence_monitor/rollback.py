"""A snapshot of the last good weights, optimizer state and buffers, for rollbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.api.spans import Snapshot
from neaptide_toolkit.tensors import nested_tensors, tensor_bytes

if TYPE_CHECKING:
    from torch import nn

    from neaptide import ParameterStore


@attrs.define(eq=False)
class Rollback:
    """One snapshot on the host. Another restore is possible only after the level was normal."""

    model: nn.Module
    store: ParameterStore
    kept: dict[str, Any] = attrs.field(factory=dict)
    """The snapshot: `weights`, `buffers` and `optimizer`. Empty before the first snapshot."""
    at: int = 0
    """Number of updates before the snapshot was made."""
    used: bool = False
    """True if the snapshot was restored since training was last normal."""
    prepared: dict[str, Any] = attrs.field(factory=dict)
    """The buffers before the step in which a snapshot is due; empty if none is due."""

    def prepare(self, interval: int, update: int) -> None:
        """Record that the alarm level is normal, and copy the buffers if a snapshot is due.

        A snapshot is due if there is none, or if the last one is `interval` updates old.
        """
        self.used = False
        self.prepared = {}
        if not self.kept or update - self.at >= interval:
            self.prepared["buffers"] = {
                name: buffer.detach().to("cpu", copy=True)
                for name, buffer in self.model.named_buffers()
            }

    def keep(self, update: int) -> None:
        """Take the prepared snapshot, before the step changes the weights."""
        self.kept = {}  # frees the old snapshot before the new snapshot is made
        copy = self.store.snapshot(optimizer=True)
        self.kept = {"weights": copy.weights, "optimizer": copy.optimizer, **self.prepared}
        self.at = update

    def restore(self) -> bool:
        """Restore the snapshot bitwise, but keep the current learning rates of the schedule.

        Return False if there is no snapshot, or if the snapshot was already restored since training
        was last normal.
        """
        if self.used or not self.kept:
            return False
        saved = self.kept["optimizer"]
        now = self.store.optimizer.param_groups
        groups = [
            {**group, "lr": current["lr"]}
            for group, current in zip(saved["param_groups"], now, strict=True)
        ]
        optimizer = {**saved, "param_groups": groups}
        self.store.restore(Snapshot(self.kept["weights"], optimizer))
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                buffer.copy_(self.kept["buffers"][name])
        self.used = True
        return True

    def bytes(self) -> int:
        """Return the bytes of the snapshot."""
        return tensor_bytes(nested_tensors(self.kept))

    def state_dict(self) -> dict[str, Any]:
        """Return the snapshot, its update, and whether the snapshot was restored."""
        return {"kept": dict(self.kept), "at": self.at, "used": self.used}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.kept, self.at, self.used = state["kept"], state["at"], state["used"]
