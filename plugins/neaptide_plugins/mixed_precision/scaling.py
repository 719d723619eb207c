"""Dynamic loss scaling, after Micikevicius et al., Mixed Precision Training (2018), section 3.2."""

from __future__ import annotations

from typing import Any

import attrs

SMALLEST = 2.0**-126
LARGEST = 2.0**126
"""Scales between these are normal float32 numbers, and so are their inverses."""


@attrs.frozen(kw_only=True)
class LossScale:
    """The scale as a value; the methods return the next one.

    All three factors are powers of two, so that scaling and unscaling change no bit of a gradient
    that neither over- nor underflows. The policy is that of `torch.amp.GradScaler`.
    """

    scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int
    clean: int = 0
    """Updates without overflow since the scale last changed."""

    def overflowed(self) -> LossScale:
        """Return the scale after an update that was skipped."""
        return attrs.evolve(self, scale=max(self.scale * self.backoff_factor, SMALLEST), clean=0)

    def applied(self) -> LossScale:
        """Return the scale after an update that was made."""
        if self.clean + 1 < self.growth_interval:
            return attrs.evolve(self, clean=self.clean + 1)
        return attrs.evolve(self, scale=min(self.scale * self.growth_factor, LARGEST), clean=0)


@attrs.define
class LossScaler:
    """Scales alike all the gradients that go into one update."""

    current: LossScale
    carried: bool | None = None
    """Whether the gradients that wait for an update carry the scale; None where none wait.

    The first backward decides for all that are added to its gradients: the precision may change
    inside an accumulation over several steps, the scale must not.
    """

    def before_backward(self, *, wanted: bool) -> float:
        """Return what to multiply the loss by, 1 where unscaled; `wanted` by this backward."""
        if self.carried is None:
            self.carried = wanted
        return self.factor

    @property
    def factor(self) -> float:
        """What the waiting gradients are too large by."""
        return self.current.scale if self.carried else 1.0

    def updated(self, *, applied: bool) -> None:
        """Adapt the scale to an update that was applied or skipped; none waits any more."""
        if self.carried:
            self.current = self.current.applied() if applied else self.current.overflowed()
        self.carried = None

    def state_dict(self) -> dict[str, Any]:
        """Return the scale, how long it has held, and whether waiting gradients carry it."""
        return {
            "scale": self.current.scale,
            "clean": self.current.clean,
            "carried": self.carried,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.current = attrs.evolve(self.current, scale=state["scale"], clean=state["clean"])
        self.carried = state["carried"]
