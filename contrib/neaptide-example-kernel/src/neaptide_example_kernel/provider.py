"""The kernel. This kernel is plain torch; yours may use CUDA, Triton or C++."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neaptide_kernels.registry import Provider

if TYPE_CHECKING:
    from neaptide_kernels.registry import Query, Support


def supports(query: Query) -> Support:
    """Return True, or the reason why the call is not supported."""
    if query["zero"] is not None:
        return "affine codes"
    if query["codes"].elements % query["group"]:
        return "the last block is shorter than the others"
    if query["dtype"] is not torch.float32:
        return "only float32 results are supported"
    return True


def dequantize(
    codes: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None,
    group: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Multiply the codes of each block by the block's scale."""
    del zero, dtype
    return torch.mul(codes.reshape(-1, group), scale[:, None]).view(codes.shape)


PROVIDER = Provider(
    op="dequantize_int8", name="example", run=dequantize, supports=supports, priority=7
)
