"""Dynamic loss scaling, after Micikevicius et al., Mixed Precision Training (2018), section 3.2."""

from __future__ import annotations

from typing import Any

import attrs

SMALLEST = 2.0**-126
LARGEST = 2.0**126
"""Largest loss scale.

Scales from `SMALLEST` to `LARGEST` are normal float32 numbers, and so are the inverses of these
scales.
"""


@attrs.frozen(kw_only=True)
class LossScale:
    """A loss scale. Its methods return the next loss scale.

    The scale, `growth_factor` and `backoff_factor` are powers of two. So scaling and unscaling are
    exact for a gradient that neither overflows nor underflows. `torch.amp.GradScaler` uses the same
    rules.
    """

    scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int
    clean: int = 0
    """Number of updates without overflow since the scale last changed."""

    def overflowed(self) -> LossScale:
        """Return the scale after a skipped update."""
        return attrs.evolve(self, scale=max(self.scale * self.backoff_factor, SMALLEST), clean=0)

    def applied(self) -> LossScale:
        """Return the scale after an applied update."""
        if self.clean + 1 < self.growth_interval:
            return attrs.evolve(self, clean=self.clean + 1)
        return attrs.evolve(self, scale=min(self.scale * self.growth_factor, LARGEST), clean=0)


@attrs.define
class LossScaler:
    """Applies one scale to all gradients of an update."""

    current: LossScale
    carried: bool | None = None
    """True if the accumulated gradients are scaled; None without accumulated gradients.

    The first backward of an accumulation decides for all its backwards: the precision may change
    between two backwards, but the scale must not change.
    """

    def before_backward(self, *, wanted: bool) -> float:
        """Return the factor of the loss; `wanted` states whether this backward is in fp16.

        The first backward of an accumulation decides whether all gradients of the accumulation are
        scaled.
        """
        if self.carried is None:
            self.carried = wanted
        return self.factor

    @property
    def factor(self) -> float:
        """The factor by which the accumulated gradients are scaled; 1 if they are not."""
        return self.current.scale if self.carried else 1.0

    def updated(self, *, applied: bool) -> None:
        """Adapt the scale to an applied or skipped update. The update ends the accumulation."""
        if self.carried:
            self.current = self.current.applied() if applied else self.current.overflowed()
        self.carried = None

    def state_dict(self) -> dict[str, Any]:
        """Return `scale` and `clean` of the loss scale, and `carried`."""
        return {
            "scale": self.current.scale,
            "clean": self.current.clean,
            "carried": self.carried,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.current = attrs.evolve(self.current, scale=state["scale"], clean=state["clean"])
        self.carried = state["carried"]
