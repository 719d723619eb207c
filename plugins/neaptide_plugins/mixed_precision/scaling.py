"""Dynamic loss scaling, after Micikevicius et al., Mixed Precision Training (2018), section 3.2."""

from __future__ import annotations

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
