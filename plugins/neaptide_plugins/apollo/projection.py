"""APOLLO's random projections (Zhu et al., 2024, https://arxiv.org/abs/2412.05270, algorithm 1).

A projection is computed again for each update. Only a seed and the update's number are needed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from neaptide_kernels.counter_random import uniform

if TYPE_CHECKING:
    from collections.abc import Sequence

_MATRIX = 2
_SHARE, _LARGEST = 4, 256
"""A rank of 0 stands for the smaller side divided by `_SHARE`, at most `_LARGEST`."""


def rank_of(shape: Sequence[int], rank: int) -> int | None:
    """Return the rank to which a matrix of this shape is projected, or None.

    None: it is no matrix, or its smaller side is not larger than the rank.
    """
    if len(shape) != _MATRIX:
        return None
    side = min(shape)
    chosen = rank or max(1, min(side // _SHARE, _LARGEST))
    return chosen if side > chosen else None


def tall(shape: Sequence[int]) -> bool:
    """Return whether the columns of a matrix are projected; a square matrix counts as tall."""
    return shape[0] >= shape[1]


def projected_shape(shape: Sequence[int], rank: int) -> list[int]:
    """Return the shape of a projected matrix: `rank` takes the place of the smaller side."""
    return [shape[0], rank] if tall(shape) else [rank, shape[1]]


def gaussian(seed: int, count: int, like: torch.Tensor) -> torch.Tensor:
    """Return `count` standard normal numbers, on the device and in the dtype of `like`.

    They depend only on the seed and on their place: Box and Muller's transform of numbers of 24
    random bits. So none is larger than 5.8.
    """
    half = (count + 1) // 2
    pairs = uniform(seed, torch.arange(2 * half, device=like.device)).to(like.dtype)
    radius = pairs[:half].neg_().add_(1).log_().mul_(-2).sqrt_()
    angle = pairs[half:].mul_(2 * math.pi)
    return torch.cat([angle.cos().mul_(radius), angle.sin_().mul_(radius)])[:count]


def projected(grad: torch.Tensor, rank: int, seed: int) -> torch.Tensor:
    """Return step 1 of algorithm 1, `R = P G`, with `P ~ N(0, 1 / rank)` of shape `[rank, side]`.

    Args:
        grad: a matrix `[m, n]` of float32 or float64. The paper has `m <= n`; a tall matrix is
            projected from the right, `R = G P^T`.
        rank: less than the smaller side.
        seed: decides the numbers in `P`.
    """
    side = min(grad.shape)
    draw = gaussian(seed, rank * side, grad).mul_(rank**-0.5).view(rank, side)
    return grad @ draw.T if tall(grad.shape) else draw @ grad
