"""Converts DeepSpeed's section `activation_checkpointing`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neaptide_toolkit.foreign import Source

_SECTION = "activation_checkpointing"


def convert(source: Source) -> dict[str, Any] | None:
    """Return the settings of the plugin, or None if the source has no such section.

    The section's values are not converted, because they tune checkpoint calls that the model's code
    contains. This plugin needs no such calls.
    """
    if not source.look(_SECTION, dict):
        return None
    source.note(
        _SECTION,
        "no counterpart; the plugin finds the blocks, and `interval` sets the blocks in a segment",
    )
    for switch in ("partition_activations", "cpu_checkpointing", "profile"):
        if source.look(f"{_SECTION}.{switch}", bool) is False:
            source.take(f"{_SECTION}.{switch}", bool)
    for what in ("offload_param", "offload_optimizer"):
        if source.look(f"zero_optimization.{what}.device", str) in {"cpu", "nvme"}:
            source.note(_SECTION, "layer-streaming computes blocks again in the backward, too")
            return None
    return {}
