"""The measured gain of a jump, for plugins that learn from it."""

from __future__ import annotations

import attrs

from neaptide import StashKey


@attrs.frozen
class JumpGain:
    """The measured gain of a jump (predicted update)."""

    jump: int
    """Number of the update after the jump; the same number as in `steps.csv`."""
    horizon: int
    gain: float
    """Reduction of the loss by the jump; negative if the jump raised the loss."""
    stderr: float
    """Standard error of the gain."""


JUMP_GAIN: StashKey[JumpGain | None] = StashKey("delayed-verdict.jump-gain")
"""The key of the latest measured gain, None before the first. Without a judge it is not set."""
