"""Pack histories from the host into the ring buffers that the op reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neaptide_kernels.accelerator import sent

if TYPE_CHECKING:
    from collections.abc import Sequence


def packed(
    samples: Sequence[float], window: int, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the newest `window` samples as float32 `[window]`, oldest first, and their number.

    The number is int64, 0-dim. The host does not wait for a copy to a device with streams.
    """
    newest = list(samples[-window:])
    filled = [*newest, *[0.0] * (window - len(newest))]
    ring = torch.tensor(filled, dtype=torch.float32, device="cpu")
    count = torch.tensor(len(newest), device="cpu")
    return sent(ring, torch.device(device)), sent(count, torch.device(device))
