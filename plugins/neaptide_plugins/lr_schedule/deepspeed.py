"""Converts DeepSpeed's `scheduler`: its shape and its warmup.

The converter of the framework takes the length and the peak: they are `train.steps` and
`optimizer.lr`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neaptide_toolkit.foreign import Source

_SHAPES = {"warmuplr": "constant", "warmupdecaylr": "linear", "warmupcosinelr": "cosine"}


def convert(source: Source) -> dict[str, Any] | None:
    """Return the settings of the plugin, or None if it has no such schedule."""
    source.note("scheduler", "not converted; see name and options of [plugins.lr-schedule]")
    shape = _SHAPES.get((source.look("scheduler.type", str) or "").lower())
    if shape is None:
        return None
    source.take("scheduler.type", str)
    params = "scheduler.params"
    source.note(params, f"not converted; {shape!r} begins and ends at zero")
    steps = source.take(f"{params}.warmup_num_steps", int)
    if source.look(f"{params}.warmup_type", str) == "linear":
        source.take(f"{params}.warmup_type", str)
    elif steps != 0 and shape != "cosine":
        text = "the warmup is linear here; DeepSpeed's is logarithmic by default"
        source.note("scheduler.type", text)
    for start in ("warmup_min_lr", "warmup_min_ratio", "cos_min_ratio"):
        if source.look(f"{params}.{start}", float) == 0:
            source.take(f"{params}.{start}", float)
    return {"name": shape, "warmup": 1000 if steps is None else steps}
