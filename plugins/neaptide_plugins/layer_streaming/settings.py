"""The settings of streaming, derived from the config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

if TYPE_CHECKING:
    from .updates.backward_update import Clip


@attrs.frozen(kw_only=True)
class StreamingSettings:
    """Settings of streaming. The plugin's config describes the fields that have no text here."""

    max_active_layers: int = 2
    prefetch_distance: int = 1
    resident: int = 0
    mode: Literal["recompute", "graph"] = "recompute"
    inputs_on_host: bool = False
    inputs_on_disk: bool = False
    """True if `inputs_on_host` may be on the disk, where RAM has no room for them."""
    micro_batches: int = 1
    on_device: bool = False
    """True if the optimizer steps on the device."""
    optimizer_slots: int = 2
    in_backward: bool = False
    """True if the optimizer steps inside the backward, so that gradients are not stored."""
    clip: Clip = "none"
    """How gradients are clipped inside the backward."""
    max_norm: float | None = None
    check_finite: bool = True
    split_master: bool = False
    poison: bool = False
    """Overwrite freed slots with NaN, for tests."""
