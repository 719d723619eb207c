"""What activation-checkpointing makes of DeepSpeed's section of the same name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neaptide_toolkit.foreign import Source

_SECTION = "activation_checkpointing"


def convert(source: Source) -> dict[str, Any] | None:
    """Return the settings of the plugin, or None where the section is absent.

    DeepSpeed's section only tunes what the model's own code checkpoints; here it is the plugin that
    finds the blocks.
    """
    if not source.look(_SECTION, dict):
        return None
    source.note(
        _SECTION, "no counterpart; blocks are found, and `interval` says how many a segment has"
    )
    for switch in ("partition_activations", "cpu_checkpointing", "profile"):
        if source.look(f"{_SECTION}.{switch}", bool) is False:
            source.take(f"{_SECTION}.{switch}", bool)
    return {}
