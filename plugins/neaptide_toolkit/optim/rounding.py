"""Updates 16-bit weights in float32, and rounds the results stochastically.

Rounding to the nearest loses each update of less than half the distance to the next number. With
stochastic rounding the mean of many roundings is the exact value (Gupta et al., 2015,
https://arxiv.org/abs/1502.02551).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import torch

from neaptide_kernels.apply_delta import apply_delta
from neaptide_toolkit.optimizers import Rounding

if TYPE_CHECKING:
    from collections.abc import Sequence

NARROW = frozenset({torch.bfloat16, torch.float16})
"""The dtypes that are rounded."""
ROUNDINGS = get_args(Rounding)
_APART = 0x9E3779B97F4A7C15
"""`2**64` divided by the golden ratio: the seeds of two parameters differ in all bits."""


def widened(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a float32 copy of each 16-bit tensor, and every other tensor itself."""
    return [tensor.float() if tensor.dtype in NARROW else tensor for tensor in tensors]


def round_into(tensor: torch.Tensor, values: torch.Tensor, seed: int) -> None:
    """Set a 16-bit tensor to float32 `values` of its shape, rounded stochastically.

    The random bits depend only on `seed` and on the element's place in the tensor. An element that
    the values do not change stays as it is. `values` is changed.
    """
    if tensor.dtype in NARROW and tensor.numel():
        values -= tensor
        one = torch.ones((), device=tensor.device)
        apply_delta([tensor], [values], one, True, seed)


def seed_of(seed: int, step: int, place: int, part: int) -> int:
    """Return a seed of 64 bits.

    Args:
        seed: the optimizer's seed, in [0, 2**32).
        step: the number of updates of the parameter, this one included.
        place: the number of the parameter in the optimizer.
        part: 0 for the parameter, else the number of a state tensor, up to 7.
    """
    return (seed + (step << 32) + place * _APART + (part << 60)) % (1 << 63)
