"""The 64 features of a run's newest losses, for plugins that decide by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neaptide_kernels.encode_state import EXTRAS, LOSSES, NORMS, SECONDS, encode_state

if TYPE_CHECKING:
    from collections.abc import Sequence


def run_features(losses: Sequence[float], *, progress: float, rate: float) -> torch.Tensor:
    """Return the features of the op `encode_state`, float64 `[64]` on the host.

    `progress` is the share of the updates that are done. `rate` is the learning rate divided by the
    largest one. Gradient norms and times are not encoded: norms are not always measured, and no
    decision may depend on a time.
    """
    newest = losses[-LOSSES:]
    window = torch.zeros(LOSSES, dtype=torch.float64, device="cpu")
    window[: len(newest)] = window.new_tensor(newest)
    count = torch.tensor(len(newest), device="cpu")
    none = torch.zeros_like(count)
    extras = window.new_zeros(len(EXTRAS))
    extras[EXTRAS.index("learning_rate_share")] = rate
    extras[EXTRAS.index("progress")] = progress
    encoded: torch.Tensor = encode_state(
        window, count, window.new_zeros(NORMS), none, window.new_zeros(SECONDS), none, extras
    )
    return encoded
