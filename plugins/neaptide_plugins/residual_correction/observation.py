"""One jump and the first updates after it: how far the weights went another way than forecast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neaptide import Span


@attrs.define(eq=False)
class Observation:
    """The tensors of the latest accepted jump, on the host.

    `jump` has the forecast change in bfloat16, `reference` the weights after the jump, as they are.
    """

    jump: dict[str, torch.Tensor] = attrs.field(factory=dict)
    reference: dict[str, torch.Tensor] = attrs.field(factory=dict)
    recorded: set[str] = attrs.field(factory=set)
    """The spans that the jump changed."""
    horizon: int = 0
    """Updates that the jump replaced; 0 if no jump is observed."""
    key: list[float] = attrs.field(factory=list)
    """The key of the state of the run at the jump."""
    seen: int = 0
    """Updates since the jump."""

    def reserve(self, spans: Iterable[Span]) -> None:
        """Allocate the tensors of those spans that have none yet."""
        for span in spans:
            if span.name not in self.jump:
                self.jump[span.name] = torch.zeros(span.shape, dtype=torch.bfloat16, device="cpu")
                self.reference[span.name] = torch.zeros(span.shape, dtype=span.dtype, device="cpu")

    def begin(self, horizon: int, key: list[float]) -> None:
        """Observe the jump that was recorded; it replaced `horizon` updates."""
        self.horizon, self.key, self.seen = horizon, key, 0

    def end(self) -> None:
        """Observe no jump."""
        self.horizon, self.key, self.seen = 0, [], 0
        self.recorded.clear()

    def record(self, name: str, weight: torch.Tensor, delta: torch.Tensor) -> None:
        """Keep the change of a weight in a jump, and the weight after it."""
        self.jump[name].copy_(delta)
        self.reference[name].copy_(weight)
        self.recorded.add(name)

    def without(self, name: str, correction: torch.Tensor) -> None:
        """Take the part of a jump that was no forecast, float32 on the host, out of the jump."""
        self.jump[name].copy_(self.jump[name].float().sub_(correction))

    def residual(self, name: str, weight: torch.Tensor, updates: int) -> torch.Tensor:
        """Return the change in an update, less the forecast one: float32 on the host.

        `weight` is the weight `updates` updates after the jump.
        """
        if name not in self.recorded:
            return torch.zeros(weight.shape, dtype=torch.float32, device="cpu")
        moved = weight.detach().to("cpu", torch.float32, copy=True)
        moved.sub_(self.reference[name].float()).div_(updates)
        return moved.sub_(self.jump[name].float(), alpha=1.0 / self.horizon)

    def state_dict(self) -> dict[str, Any]:
        """Return the tensors and counts."""
        return {
            "jump": dict(self.jump),
            "reference": dict(self.reference),
            "recorded": sorted(self.recorded),
            "horizon": self.horizon,
            "key": list(self.key),
            "seen": self.seen,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        for part in ("jump", "reference"):
            setattr(self, part, {name: held.to("cpu") for name, held in state[part].items()})
        self.recorded = set(state["recorded"])
        self.horizon, self.key, self.seen = state["horizon"], list(state["key"]), state["seen"]
