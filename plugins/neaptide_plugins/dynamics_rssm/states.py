"""States of recurrent models in a quarter of their bytes, and what else a step leaves behind."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from neaptide_kernels.int8 import dequantize_int8, quantize_int8

from .models import ACTIONS, GROUPS, UNITS


@attrs.frozen(eq=False)
class Compressed:
    """States of models: 256 codes, 32 categories and a scale each, 292 bytes in place of 1,152.

    A code is off by half a scale at most. The scale is a 127th of the state's largest magnitude,
    which is below 1, so a unit is off by at most 1/254.
    """

    codes: torch.Tensor
    """int8 `[..., 256]`."""
    kinds: torch.Tensor
    """uint8 `[..., 32]`."""
    scales: torch.Tensor
    """float32 `[...]`."""

    @classmethod
    def zeros(cls, *shape: int) -> Compressed:
        """Return states of zeros."""
        codes = torch.zeros(*shape, UNITS, dtype=torch.int8, device="cpu")
        kinds = codes.new_zeros(*shape, GROUPS, dtype=torch.uint8)
        return cls(codes, kinds, codes.new_zeros(*shape, dtype=torch.float32))

    @classmethod
    def of(cls, deter: torch.Tensor, stoch: torch.Tensor) -> Compressed:
        """Compress states, float32 `[..., 256]` and int64 `[..., 32]`."""
        codes, scales, _ = quantize_int8(deter.contiguous(), UNITS)
        return cls(codes, stoch.to(torch.uint8), scales.view(deter.shape[:-1]))

    def restored(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states, as `of` takes them."""
        codes = self.codes.contiguous()
        return dequantize_int8(codes, self.scales.reshape(-1), None, UNITS), self.kinds.long()

    def at(self, places: Any) -> Compressed:
        """Return some of the states."""
        return Compressed(self.codes[places], self.kinds[places], self.scales[places])

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors of all states."""
        return self.codes, self.kinds, self.scales


@attrs.define(eq=False)
class StepMemory:
    """The newest steps of an ensemble: a ring of what was seen, what came, and the states."""

    size: int
    members: int
    inputs: int
    ahead: int
    """Steps of a rollout."""
    horizons: int
    count: int = 0
    """Number of steps so far."""
    updates: torch.Tensor = attrs.field(init=False)
    """int64 `[size]`: the update of each step; -1 if there is none."""
    seen: torch.Tensor = attrs.field(init=False)
    """float32 `[size, inputs]`."""
    actions: torch.Tensor = attrs.field(init=False)
    """float32 `[size, ahead, 2]`: what the schedule does in the steps that follow."""
    targets: torch.Tensor = attrs.field(init=False)
    """float32 `[size, horizons]`: what the curves lacked; NaN while it is not known."""
    states: Compressed = attrs.field(init=False)
    """`[size, members]`."""

    def __attrs_post_init__(self) -> None:
        self.updates = torch.full((self.size,), -1, device="cpu")
        self.seen = torch.zeros(self.size, self.inputs, dtype=torch.float32, device="cpu")
        self.actions = self.seen.new_zeros(self.size, self.ahead, ACTIONS)
        self.targets = self.seen.new_full((self.size, self.horizons), torch.nan)
        self.states = Compressed.zeros(self.size, self.members)

    @property
    def newest(self) -> int:
        """Place of the newest step."""
        return (self.count - 1) % self.size

    def add(
        self, update: int, seen: torch.Tensor, actions: torch.Tensor, states: Compressed
    ) -> int:
        """Store a step and return its place; `states` are `[members]`."""
        self.count += 1
        place = self.newest
        self.updates[place], self.seen[place], self.actions[place] = update, seen, actions
        self.targets[place] = torch.nan
        for whole, one in zip(self.states.tensors, states.tensors, strict=True):
            whole[place] = one
        return place

    def settle(self, update: int, horizon: int, residual: float) -> None:
        """Store what the curves of a step lacked at the horizon with this number."""
        self.targets[self.updates == update, horizon] = residual

    def learnable(self, span: int) -> torch.Tensor:
        """Return the places of steps with a target, and with another step `span` updates later."""
        after = self.updates.roll(-1)
        known = ~self.targets.isnan().all(1)
        return ((self.updates >= 0) & (after == self.updates + span) & known).nonzero()[:, 0]

    @property
    def bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(each.nbytes for each in self._tensors().values())

    def _tensors(self) -> dict[str, torch.Tensor]:
        own = {name: getattr(self, name) for name in ("updates", "seen", "actions", "targets")}
        return own | attrs.asdict(self.states, recurse=False)

    def state_dict(self) -> dict[str, Any]:
        """Return the steps."""
        tensors = {name: each.clone() for name, each in self._tensors().items()}
        return {"count": self.count, "tensors": tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.count = state["count"]
        for name, each in self._tensors().items():
            each.copy_(state["tensors"][name])
