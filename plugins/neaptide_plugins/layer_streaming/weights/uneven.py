"""Tells of a block that is much larger than others: each slot is as large as the largest block.

The stages of a UNet are such blocks. What is repeated in them would be better blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neaptide_toolkit.recompute import find_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

_LARGE, _SMALL = 1 / 4, 1 / 8
"""Shares of all blocks' weights: of a block that is too large, and of parts that may be blocks."""


def large_block(blocks: Sequence[tuple[str, nn.Module]]) -> str | None:
    """Return a line about the largest block, and how to name smaller ones.

    It is None if no block is large, if all are equal, or if nothing is repeated in the large ones.
    """
    sizes = [_bytes(block) for _, block in blocks]
    total, largest = sum(sizes), max(sizes, default=0)
    if largest <= _LARGE * total or largest == min(sizes):
        return None
    parts = [
        pattern
        for (_, block), own in zip(blocks, sizes, strict=True)
        if own > _SMALL * total
        for pattern in _repeated_in(block, total)
    ]
    if not parts:
        return None
    name, share = blocks[sizes.index(largest)][0], largest / total
    return (
        f"block {name!r} has {share:.0%} of the weights of all blocks, and each slot is as large; "
        f"for smaller blocks set blocks = {list(dict.fromkeys(parts))}"
    )


def _repeated_in(block: nn.Module, total: int) -> Iterator[str]:
    """Yield patterns of the names of the parts that are repeated in a block."""
    for name, part in find_blocks(block):
        large = _bytes(part) > _SMALL * total
        inner = list(_repeated_in(part, total)) if large else []
        words = name.split(".")
        if inner:
            yield from inner
        elif not all(map(str.isdecimal, words)):  # such a name would match everything
            yield ".".join(["**", *("*" if word.isdecimal() else word for word in words)])


def _bytes(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())
