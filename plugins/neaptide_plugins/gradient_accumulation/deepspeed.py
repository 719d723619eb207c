"""Converts DeepSpeed's batch sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neaptide_toolkit.foreign import Source


def convert(source: Source) -> dict[str, Any] | None:
    """Return the settings of the plugin, or None if each update has only one micro-batch."""
    steps = source.take("gradient_accumulation_steps", int)
    if steps is None:
        steps = _by_sizes(source)
    return None if steps in (None, 1) else {"steps": steps}


def _by_sizes(source: Source) -> int | None:
    """Return the batch size divided by the micro-batch size of one GPU.

    None if a size is missing, or if the result is not an integer.
    """
    size = source.look("train_batch_size", int)
    micro = source.look("train_micro_batch_size_per_gpu", int)
    if not size or not micro or size % micro:
        return None
    source.take("train_micro_batch_size_per_gpu", int)
    return size // micro
