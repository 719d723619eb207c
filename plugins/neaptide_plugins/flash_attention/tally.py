"""Counts the calls of attention that are replaced, and why others are not."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import torch


def backends() -> tuple[bool, ...]:
    """Return which backends of torch's attention are allowed, as `sdpa_kernel` changes it."""
    cuda: Any = torch.backends.cuda  # its functions have no types
    return (
        cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
    )  # fmt: skip


@attrs.define(eq=False)
class Tally:
    """The calls of one run. Calls that `torch.compile` traces are not counted."""

    replaced: int = 0
    left: Counter[str] = attrs.field(factory=Counter)
    """Number of calls by the reason why they are left as they are."""
    dense: int = 0
    """Replaced calls with a mask of all scores."""
    allowed: tuple[bool, ...] = attrs.field(factory=backends)
    """`backends` when the run started."""

    def replace(self, *, dense: bool) -> None:
        """Count a replaced call."""
        if not torch.compiler.is_compiling():
            self.replaced += 1
            self.dense += dense

    def leave(self, reason: str) -> None:
        """Count a call that is not replaced."""
        if not torch.compiler.is_compiling():
            self.left[reason] += 1

    @property
    def reasons(self) -> str:
        """The reasons with their counts, the most frequent first; empty without any."""
        return "; ".join(f"{count} x {reason}" for reason, count in self.left.most_common())
