"""Out-of-memory errors: their explanation, beside their detection, which is the core's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neaptide.errors import is_out_of_memory
from neaptide.io.units import size

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = ["explanation", "is_out_of_memory"]


def explanation(cause: str, where: str, held: Mapping[str, int], savings: Mapping[str, int]) -> str:
    """Return one line that shows the failed allocation, the memory by use and the possible savings.

    Args:
        cause: the allocator's message.
        where: the phase and the part of the step, such as `full, backward`.
        held: bytes by use.
        savings: bytes by setting; settings that save nothing are not shown.
    """
    first = " ".join(cause.split()).partition(". ")[0].rstrip(".")
    largest = sorted((name for name in held if held[name]), key=held.__getitem__, reverse=True)
    holders = ", ".join(f"{name} {size(held[name], 2)}" for name in largest)
    text = f"out of memory in {where} ({first}); held: {holders or 'nothing by streaming'}"
    useful = {name: saved for name, saved in savings.items() if saved > 0}
    if useful:
        advice = ", ".join(f"{name} saves {size(saved, 2)}" for name, saved in useful.items())
        return f"{text}; {advice}"
    return f"{text}; a smaller train.batch_size helps"
