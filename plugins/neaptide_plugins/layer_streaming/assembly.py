"""Builds a `Streaming` from a model, its optimizer and the config, or raises an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neaptide import ConfigError, DoesNotFitError
from neaptide_toolkit.machine.collecting import only_new_objects
from neaptide_toolkit.offload.disk import region_of
from neaptide_toolkit.recompute import find_blocks

from .checks import check_blocks, check_device, check_modules, check_slots, number
from .choices import chosen, room_for
from .streaming import Streaming
from .tiers.homes import Homes
from .weights.loading import check_values
from .weights.uneven import large_block

if TYPE_CHECKING:
    import torch
    from torch import nn

    from neaptide import Run

    from .config import LayerStreamingConfig

NAME = "layer-streaming"
_WHERE = f"@ plugins.{NAME}"


def build(
    model: nn.Module, optimizer: torch.optim.Optimizer, run: Run, config: LayerStreamingConfig
) -> Streaming:
    """Move the blocks' parameters to the host and patch their forwards.

    Raises:
        ConfigError: the model cannot stream with these settings.
        DoesNotFitError: there is not enough memory.
    """
    try:
        check_device(run.device)
        blocks = find_blocks(model, config.blocks, config.exclude)
        check_blocks(model, blocks)
        check_values(model, config.weights)
        check_modules(blocks, config)
        check_slots(model, blocks, number(config, "max_active_layers"))
        settings = chosen(config, optimizer, run.config.train, run.device)
        disk, problem = room_for(config, settings, model, blocks, optimizer, run.device)
        if problem is not None:
            hint = large_block(blocks)
            msg = f"{problem}{'; ' + hint if hint else ''} {_WHERE}"
            raise DoesNotFitError(msg)
        with only_new_objects():
            return Streaming(
                model,
                blocks,
                optimizer,
                run.device,
                settings,
                homes=Homes(run.device, pin=config.pin, disk=disk),
                weights=config.weights,
            )
    except ValueError as error:
        msg = f"{error} {_WHERE}"
        raise ConfigError(msg) from error


def decided(streaming: Streaming, run: Run, config: LayerStreamingConfig) -> dict[str, Any]:
    """Return the settings and sizes that the log shows at the start."""
    settings = streaming.settings
    return {
        "blocks": len(streaming.blocks),
        "host_bytes": sum(
            block.host.nbytes for block in streaming.blocks if region_of(block.host) is None
        ),
        **_on_disk(streaming),
        "slot_bytes": sum(slot.nbytes for slot in streaming.residency.buffers()),
        "optimizer_on": "device" if settings.on_device else "cpu",
        "update": config.update,
        "clip": "none" if run.config.train.clip_norm is None else config.clip,
        "micro_batches": settings.micro_batches,
    }


def _on_disk(streaming: Streaming) -> dict[str, Any]:
    files = streaming.homes.files
    if not files:
        return {}
    return {
        "disk_bytes": sum(file.size for file in files),
        "direct": all(file.direct for file in files),
    }
