"""Lists of weights and gradients on which steps with 8-bit state are tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from . import PIECE

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHAPES = ((1,), (17, 15), (256,), (0,), (3, 5, 7), (4500,))


def gradients(dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Yield lists of gradients by name: of many magnitudes, one tensor, broken, not contiguous."""
    generator = torch.Generator().manual_seed(0)
    several = [_spread(shape, generator).to(dtype=dtype, device=device) for shape in _SHAPES]
    yield "several", several
    yield "one of 2049", [_spread((2049,), generator).to(dtype=dtype, device=device)]
    tiny = _spread((600,), generator) * 1e-25
    tiny[:300] = 0
    yield "tiny and zeros", [tiny.to(dtype=dtype, device=device), torch.zeros_like(several[1])]
    broken = _spread((1000,), generator)
    broken[[10, 300, 700]] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    yield "inf and NaN", [broken.to(dtype=dtype, device=device), several[1]]
    yield "a transposed one", [several[1].t()]
    yield "more than a piece", [_spread((PIECE + 300,), generator).to(dtype=dtype, device=device)]


def weights(dtype: torch.dtype, like: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return weights of these tensors' shapes and strides."""
    generator = torch.Generator().manual_seed(1)
    return [
        torch.empty_like(each, dtype=dtype).copy_(torch.randn(each.shape, generator=generator))
        for each in like
    ]


def _spread(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    magnitudes = torch.exp(3 * torch.randn(shape, generator=generator))
    return torch.randn(shape, generator=generator) * magnitudes
