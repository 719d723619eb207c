"""Where the results of the ops lie in memory, so that all providers and `torch.compile` agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .call import precise

if TYPE_CHECKING:
    from .call import AttentionCall


def new_output(call: AttentionCall) -> torch.Tensor:
    """Return zeros for the output; its memory is `[batch, n, heads, d_value]`, as models use it."""
    batch, heads, n, _ = call.query.shape
    return call.query.new_zeros(batch, n, heads, call.value.shape[3]).transpose(1, 2)


def new_logsumexp(call: AttentionCall) -> torch.Tensor:
    """Return zeros for the logarithms of the sums, `[batch, heads, n]`, contiguous."""
    return call.query.new_zeros(call.query.shape[:3], dtype=precise(call.query.dtype))


def packed(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose rows are contiguous, as kernels read them: itself or a copy."""
    return tensor if tensor.stride(-1) == 1 and tensor.stride(-2) else tensor.contiguous()


def as_output(tensor: torch.Tensor, call: AttentionCall) -> torch.Tensor:
    """Return an output in the dtype of the query and in the layout of `new_output`."""
    output = tensor.to(call.query.dtype)
    return output.transpose(1, 2).contiguous().transpose(1, 2)


def like(tensor: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
    """Return a gradient in the dtype and the layout of `torch.empty_like(pattern)`."""
    result = torch.empty_like(pattern)
    if tensor.dtype == result.dtype and tensor.stride() == result.stride():
        return tensor
    return result.copy_(tensor)
