"""Converts DeepSpeed's `fp16`, `bf16` and `torch_autocast` to settings of mixed-precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neaptide_toolkit.foreign import Source

_DTYPES = {"bfloat16": "bf16", "float16": "fp16"}
_AUTOCAST = "weights stay in fp32 and forwards run under autocast; DeepSpeed casts the weights"


def convert(source: Source) -> dict[str, Any] | None:
    """Return the settings of the plugin, or None if everything runs in fp32."""
    chosen = None
    for dtype in ("fp16", "bf16"):
        if source.take(f"{dtype}.enabled", bool):
            chosen = dtype
            source.note(f"{dtype}.enabled", _AUTOCAST)
    if source.take("torch_autocast.enabled", bool):
        chosen = _DTYPES.get(source.take("torch_autocast.dtype", str) or "bfloat16", chosen)
    if chosen is None:
        return None
    return {"dtype": chosen, **(_scaling(source) if chosen == "fp16" else {})}


def _scaling(source: Source) -> dict[str, Any]:
    fixed = source.look("fp16.loss_scale", float)
    if fixed:
        source.note(
            "fp16.loss_scale", "the loss scale is always dynamic; this constant is not used"
        )
    elif fixed is not None:
        source.take("fp16.loss_scale", float)
    power = source.take("fp16.initial_scale_power", int)
    window = source.take("fp16.loss_scale_window", int)
    # The power is clamped, because 2.0**power may overflow. If the power is out of range, the
    # setting's validator raises an error.
    scale = {} if power is None else {"initial_scale": 2.0 ** max(-1000, min(power, 1000))}
    return {**scale, "growth_interval": 1000 if window is None else window}
