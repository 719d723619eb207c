"""Running out of memory inside a block: what to try, and what to say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neaptide.io.units import size

if TYPE_CHECKING:
    from collections.abc import Mapping


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether torch could not allocate; on a CPU it has no class of its own for that."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate" in str(error)
    )


def explanation(cause: str, where: str, held: Mapping[str, int], savings: Mapping[str, int]) -> str:
    """Return one line: what failed where, who holds what, and what each setting would save.

    Args:
        cause: the allocator's own message.
        where: phase, moment and block.
        held: bytes by holder.
        savings: bytes by setting; settings that would save nothing are left out.
    """
    first = " ".join(cause.split()).partition(". ")[0].rstrip(".")
    largest = sorted((name for name in held if held[name]), key=held.__getitem__, reverse=True)
    holders = ", ".join(f"{name} {size(held[name], 2)}" for name in largest)
    text = f"out of memory in {where} ({first}); held: {holders or 'nothing that streams'}"
    useful = {name: saved for name, saved in savings.items() if saved > 0}
    if useful:
        advice = ", ".join(f"{name} saves {size(saved, 2)}" for name, saved in useful.items())
        return f"{text}; {advice}"
    return f"{text}; a smaller train.batch_size helps"
