"""Derives the settings of streaming from the config. Raises ValueError if settings conflict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neaptide_toolkit.machine.devices import free_bytes
from neaptide_toolkit.machine.facts import memory
from neaptide_toolkit.machine.pretended import kind_of

from .budget import plan, shortage
from .checks import number
from .settings import StreamingSettings
from .tiers.disk import MOVABLE, least, opened, ram_for_homes
from .tiers.homes import is_the_device
from .updates.stepping import adoptable
from .weights.blocks import parameters_outside

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn

    from neaptide.config.schema import TrainSection

    from .config import LayerStreamingConfig
    from .tiers.homes import DiskTier


def chosen(
    config: LayerStreamingConfig,
    optimizer: torch.optim.Optimizer,
    train: TrainSection,
    device: torch.device,
) -> StreamingSettings:
    """Return the settings of streaming.

    If settings conflict, raise ValueError with a text that states how to solve the conflict.
    """
    reason = adoptable(optimizer)
    in_backward, on_device = config.update == "in_backward", config.optimizer_on == "device"
    split, on_disk = config.master == "split", config.tier == "disk"
    asked = {
        "update = 'in_backward'": in_backward,
        "optimizer_on = 'device'": on_device,
        "master = 'split'": split,
        "tier = 'disk'": on_disk,
    }
    needing = [setting for setting, wanted in asked.items() if wanted]
    if reason is not None and needing:
        msg = (
            f"{needing[0]} needs an optimizer that can be stepped block by block: {reason}; set "
            f"optimizer_on = 'cpu' with update = 'after_backward', master = 'weights' and "
            f"tier = 'ram'"
        )
        raise ValueError(msg)
    if in_backward and config.clip == "global" and train.clip_norm is not None:
        msg = (
            f"clip = 'global' needs stored gradients (train.clip_norm is {train.clip_norm}), "
            f"which update = 'in_backward' does not have; choose clip = 'per_tensor' or "
            f"'lagged', or update = 'after_backward'"
        )
        raise ValueError(msg)
    if config.clip == "none" and train.clip_norm is not None:
        msg = f"clip = 'none' contradicts train.clip_norm = {train.clip_norm}; remove one of them"
        raise ValueError(msg)
    fast = config.optimizer_on == "auto" and kind_of(device) != "cpu" and reason is None
    return StreamingSettings(
        max_active_layers=number(config, "max_active_layers"),
        prefetch_distance=config.prefetch_distance,
        resident=0 if config.resident == "auto" else config.resident,
        mode=config.mode,
        inputs_on_host=config.inputs != "device",
        inputs_on_disk=config.inputs == "disk",
        micro_batches=number(config, "micro_batches"),
        on_device=bool(needing) or fast,
        optimizer_slots=number(config, "optimizer_slots"),
        in_backward=in_backward,
        clip="none" if config.clip == "global" else config.clip,
        max_norm=train.clip_norm,
        check_finite=train.check_finite,
        split_master=split,
    )


def room_for(
    config: LayerStreamingConfig,
    settings: StreamingSettings,
    model: nn.Module,
    blocks: Sequence[tuple[str, nn.Module]],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> tuple[DiskTier | None, str | None]:
    """Return the tier below RAM, if there is one, and an error text of one line.

    The text is None if RAM, device memory and disks are large enough.
    """
    outside = parameters_outside(model, [block for _, block in blocks])
    adopted = adoptable(optimizer) is None
    needed = plan(
        blocks,
        outside,
        optimizer,
        settings,
        adopted=adopted,
        in_place=is_the_device(device, on_disk=config.tier == "disk"),
        staged=not is_the_device(device, on_disk=False),
    )
    host, on_device = dict(needed.host), needed.device
    if device.type == "cpu":
        host |= on_device
    disk = None
    if config.tier == "disk":
        ram = ram_for_homes(config, host)
        disk = opened(config, device, ram, max(0, needed.homes - ram))
        movable = sum(host.pop(use, 0) for use in MOVABLE)
        host["weights and optimizer state"] = min(ram, movable)
    problem = shortage(host, least(memory().room, config.host_gib), "RAM")
    if problem is None and (device.type != "cpu" or config.device_gib is not None):
        room = least(free_bytes(device), config.device_gib)
        problem = shortage(on_device, room, str(device))
    return disk, problem
