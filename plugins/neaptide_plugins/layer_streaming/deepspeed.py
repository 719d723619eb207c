"""Converts DeepSpeed's offload of parameters and of the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neaptide_toolkit.foreign import Source

_ZERO, _PLACES = "zero_optimization", ("cpu", "nvme")


def convert(source: Source) -> dict[str, Any] | None:
    """Return the settings of the plugin, or None if nothing is offloaded."""
    found: dict[str, str] = {}
    for what in ("offload_param", "offload_optimizer"):
        path = f"{_ZERO}.{what}"
        place = source.look(f"{path}.device", str)
        if place in _PLACES:
            found[what] = source.take(f"{path}.device", str) or ""
            source.note(path, "see the settings of [plugins.layer-streaming]")
            source.take(f"{path}.pin_memory", bool)
    if not found:
        return None
    if "offload_param" not in found:
        text = "layer-streaming keeps weights in RAM, too, and copies blocks to the device"
        source.note(f"{_ZERO}.offload_optimizer.device", text)
    on_disk = [what for what, place in found.items() if place == "nvme"]
    if not on_disk:
        return {}
    folders = [source.take(f"{_ZERO}.{what}.nvme_path", str) for what in on_disk]
    folder = next((one for one in folders if one), None)
    if folder is None:
        source.refuse(f"{_ZERO}.{on_disk[0]}.nvme_path", "a disk needs a directory")
    return {"tier": "disk", "path": folder}
