"""A copy of the last good weights, optimizer state and buffers, and putting it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.api.spans import Snapshot
from neaptide.tensors import nested_tensors, tensor_bytes

if TYPE_CHECKING:
    from torch import nn

    from neaptide import ParameterStore


@attrs.define(eq=False)
class Rollback:
    """Holds one copy, on the host, and puts it back at most once an episode."""

    model: nn.Module
    store: ParameterStore
    kept: dict[str, Any] = attrs.field(factory=dict)
    """`weights` and `buffers` by name, and the `optimizer`'s state; empty before the first."""
    at: int = 0
    """Update at which the copy was made."""
    used: bool = False
    """Whether it was put back in this episode: since training last was normal."""

    def keep_every(self, interval: int, update: int) -> None:
        """Training is normal at `update`: make a new copy if the last is `interval` updates old."""
        self.used = False
        if self.kept and update - self.at < interval:
            return
        self.kept = {}  # first, or there would be two at once
        copy = self.store.snapshot(optimizer=True)
        self.kept = {
            "weights": copy.weights,
            "optimizer": copy.optimizer,
            "buffers": {
                name: buffer.detach().to("cpu", copy=True)
                for name, buffer in self.model.named_buffers()
            },
        }
        self.at = update

    def restore(self) -> bool:
        """Put the copy back bitwise, once an episode; return whether it was.

        All but the learning rates: they belong to a schedule that goes on.
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
        """Return what the copy takes."""
        return tensor_bytes(nested_tensors(self.kept))

    def state_dict(self) -> dict[str, Any]:
        """Return the copy, and what became of it."""
        return {"kept": dict(self.kept), "at": self.at, "used": self.used}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.kept, self.at, self.used = state["kept"], state["at"], state["used"]
