"""Orthogonalises matrices in one batch if a trial shows that a batch has the bits of each alone.

Then it makes no difference to a matrix which others are updated with it, and a run that updates
block by block has the bits of one that updates all at once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from neaptide_toolkit.machine.pretended import is_pretended

from .newton_schulz import orthogonalised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .polynomials import Step

_COMPARED = {2: 1 << 20, 4: 1 << 14, 8: 1 << 14}
"""The least number of elements that a trial compares, by the bytes of one. A different order of
additions changes the last bit of some of them, but of few that are rounded to 16 bits."""
_MOST_BATCHES = 1 << 13
"""The most batches of a trial, which small matrices need."""


def orthogonalised_together(
    matrices: Sequence[torch.Tensor], steps: tuple[Step, ...], norm: str = "frobenius"
) -> list[torch.Tensor]:
    """Return `orthogonalised` of each matrix, to the bit of the matrix alone.

    Args:
        matrices: floating `[R, C]`, all of one shape, dtype and device.
        steps: `(a, b, c)` of each iteration.
        norm: see `orthogonalised`.
    """
    count, first = len(matrices), matrices[0]
    threads = torch.get_num_threads() if first.is_cpu else 0
    kind = (first.shape, first.dtype, first.device, steps, norm, threads)
    unknown = first.is_meta or is_pretended()
    if count > 1 and (unknown or _is_exact(count, *kind)):
        # No variable refers to the stack, so that `orthogonalised` can free it.
        return [*orthogonalised(torch.stack([*matrices]), steps, norm)]
    return [orthogonalised(matrix.unsqueeze(0), steps, norm)[0] for matrix in matrices]


@lru_cache(maxsize=1024)
def _is_exact(
    count: int,
    shape: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
    steps: tuple[Step, ...],
    norm: str,
    threads: int,  # noqa: ARG001 - a part of the key: products are divided among the threads
) -> bool:
    """Return whether matrices in a batch of `count` have the bits of each alone, by a trial."""
    generator = torch.Generator("cpu").manual_seed(0)
    batches = 1 + _COMPARED[dtype.itemsize] // (count * shape.numel())
    for _ in range(min(batches, _MOST_BATCHES)):
        drawn = torch.randn(count, *shape, generator=generator, device="cpu").to(device, dtype)
        batch = orthogonalised(drawn, steps, norm)
        alone = (orthogonalised(one.clone().unsqueeze(0), steps, norm)[0] for one in drawn)
        if not all(map(torch.equal, batch, alone)):
            return False
    return True
