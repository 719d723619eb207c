"""Where memory is: the tiers, and which one a tensor is on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Tier = Literal["device", "host"]
"""`device` is what computes, `host` is RAM; without an accelerator all of it is `device`."""


def tier_of(device: torch.device, compute: torch.device) -> Tier:
    """Return the tier of a tensor on `device` in a run that computes on `compute`."""
    return "device" if device.type == compute.type else "host"
