"""Converts DeepSpeed's section `activation_checkpointing`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neaptide_toolkit.foreign import Source

_SECTION = "activation_checkpointing"


def convert(source: Source) -> dict[str, Any] | None:
    """Return the settings of the plugin, or None if the section is absent.

    The section's values are not converted: they tune the checkpoint calls in the model's own code,
    but this plugin finds the blocks itself.
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
    return {}
