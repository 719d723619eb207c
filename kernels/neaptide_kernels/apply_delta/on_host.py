"""Run `apply_delta` with the compiled step of `host`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from neaptide_kernels import host_threads
from neaptide_kernels.counter_random import keys
from neaptide_kernels.parts import slices
from neaptide_kernels.registry import takes

from .reference import STRIDE_BITS, FloatDeltas, add, by_weight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide_kernels.registry import Query, Support

_DTYPES = frozenset({torch.float32, torch.bfloat16})
BLOCK = 1024
"""Elements of a unit: two float32 arrays of them fit in the first cache."""
_FEWEST = 1 << 20
_PIECE = 1 << 20
"""Elements of which a float32 sum is held between several deltas of one weight."""


def supports(query: Query) -> Support:
    """Return True if the call is on a CPU and of float32 and bfloat16, otherwise a reason."""
    for name in ("params", "deltas"):
        facts = query[name]
        if facts.count and facts.dtype not in {None, *_DTYPES}:
            return f"it takes float32 and bfloat16, and {name} are {facts.dtype}"
    return host_threads.supports(query)


def fewest(query: Query) -> int:
    """Return the elements that are worth loading Numba, which takes a second, once even several.

    A jump rounds to the nearest, and is rare. Optimizers round stochastically, in every update.
    """
    return 0 if query["stochastic"] else _FEWEST


@takes(FloatDeltas)
def apply_delta(call: FloatDeltas) -> None:
    """Run `apply_delta` in Numba; the host reads `scale`."""
    seed = call.seed if call.stochastic else None
    terms = by_weight(call.params, call.deltas, call.scale)
    for place, (weight, deltas) in enumerate(terms):
        if not {weight.dtype, *(delta.dtype for delta, _ in deltas)} <= _DTYPES:
            add(weight, place, deltas, seed)  # one of a list of several dtypes
            continue
        if not weight.numel() or not deltas:
            continue
        flat = weight.detach().reshape(-1)
        pairs = [(delta.detach().reshape(-1), scale) for delta, scale in deltas]
        single = len(pairs) == 1
        for part in slices(len(flat), len(flat) if single else _PIECE):
            position = (place << STRIDE_BITS) + part.start
            _add(flat[part], [(delta[part], scale) for delta, scale in pairs], seed, position)
        if not weight.is_contiguous():
            weight.detach().copy_(flat.view(weight.shape))


def _add(
    weight: torch.Tensor,
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
    seed: int | None,
    position: int,
) -> None:
    """Add deltas one after the other. All sums but the last stay in float32."""
    total = weight if len(pairs) == 1 else weight.float()
    *first, last = pairs
    for delta, scale in first:
        _run(total, total, delta, scale, None, 0)
    _run(weight, total, *last, seed, position)


def _run(
    weight: torch.Tensor,
    before: torch.Tensor,
    delta: torch.Tensor,
    scale: torch.Tensor,
    seed: int | None,
    position: int,
) -> None:
    arrays = map(host_threads.array, (weight, before, delta))
    host_threads.run(
        f"{__package__}.host", "add_delta", -(-len(weight) // BLOCK), host_threads.FEWEST // BLOCK,
        *arrays, np.float32(scale.float().item()), seed is not None,
        *map(np.uint32, keys(seed or 0)), position,
    )  # fmt: skip
