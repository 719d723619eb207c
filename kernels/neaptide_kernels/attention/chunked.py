"""Attention in plain torch, by blocks of queries: the memory grows only linearly with tokens.

The forward keeps the scores of one block of queries at a time. The backward computes them again. A
block has all keys of its queries, so it needs no logarithms of sums, which lose digits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import torch
from torch._subclasses.fake_tensor import FakeTensor

from neaptide_kernels.registry import takes

from .call import AttentionCall, AttentionGradient, precise
from .layout import like, new_logsumexp, new_output
from .scores import kept, part_of, softmax_, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neaptide_kernels.registry import Query

ROWS = 64
"""Queries of a block."""
_TEMPORARIES = 6
"""Tensors of the size of a block's scores that exist at the same time, at most."""


@takes(AttentionCall)
def attention(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `reference.attention` by blocks of queries."""
    kind = precise(call.query.dtype)
    output, logsumexp = new_output(call), new_logsumexp(call)
    with torch.autocast(call.query.device.type, enabled=False):
        key, value = call.key.to(kind), call.value.to(kind)
        for block in _blocks(call):
            scores = block.scores(call, key)[0]
            logsumexp[:, :, block.rows] = softmax_(scores)[..., 0]
            block.drop(call, scores)
            output[:, :, block.rows] = block.product(scores, value[:, :, block.columns])
    return output, logsumexp


@takes(AttentionGradient)
def attention_backward(
    of: AttentionGradient,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute `reference.attention_backward` by blocks of queries."""
    call = of.call
    kind = precise(call.query.dtype)
    for_query = torch.zeros_like(call.query)
    for_key = torch.zeros(call.key.shape, dtype=kind, device=call.query.device)
    for_value = torch.zeros(call.value.shape, dtype=kind, device=call.query.device)
    with torch.autocast(call.query.device.type, enabled=False):
        key, value = call.key.to(kind), call.value.to(kind)
        for block in _blocks(call):
            gradient = of.gradient[:, :, block.rows].to(kind)
            scores, slope = block.scores(call, key)
            softmax_(scores)
            through = (gradient * of.output[:, :, block.rows].to(kind)).sum(-1, keepdim=True)
            changed = block.product(gradient, value[:, :, block.columns].mT)
            block.drop(call, changed)
            changed.sub_(through).mul_(scores).mul_(call.factor)
            if slope is not None:
                changed.mul_(slope)
            query = call.query[:, :, block.rows].to(kind)
            for_query[:, :, block.rows] = block.product(changed, key[:, :, block.columns])
            for_key[:, :, block.columns] += block.gathered(changed, query, call.group)
            block.drop(call, scores)
            for_value[:, :, block.columns] += block.gathered(scores, gradient, call.group)
    return for_query, like(for_key, call.key), like(for_value, call.value)


def workspace_bytes(query: Query) -> int:
    """Return the bytes of a block's scores and of copies of the key and the value."""
    batch, heads, n, _ = query["query"].shape
    kind = precise(query["query"].dtype)
    scores = batch * heads * min(ROWS, n) * query["key"].shape[2]
    copies = 2 * (query["key"].elements + query["value"].elements)
    return int((_TEMPORARIES * scores + copies) * kind.itemsize)


@attrs.frozen
class _QueryBlock:
    """Some queries, and the keys that they may see."""

    rows: slice
    columns: slice

    def scores(
        self, call: AttentionCall, key: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the scores `[batch, heads, rows, columns]`, and the slope of the softcap."""
        query = call.query[:, :, self.rows].to(key.dtype) * call.factor
        scores = self.product(query, key[:, :, self.columns].mT)
        slope = None
        if call.softcap is not None:
            scores.div_(call.softcap).tanh_()
            slope = 1 - scores * scores
            scores.mul_(call.softcap)
        if call.bias is not None and call.bias.dtype != torch.bool:
            scores += part_of(call.bias, self.rows, self.columns)
        mask = visible(call, self.rows, self.columns)
        if mask is not None:
            scores.masked_fill_(~mask, -torch.inf)
        return scores, slope

    def drop(self, call: AttentionCall, values: torch.Tensor) -> None:
        """Apply dropout in place."""
        if call.dropout:
            values.mul_(kept(call, self.rows, self.columns)).div_(1 - call.dropout)

    @staticmethod
    def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Return `left @ right`; a head of `right` serves several heads of `left`."""
        batch, heads, rows, inner = left.shape
        of_right = right.shape[1]
        folded = left.reshape(batch, of_right, heads // max(1, of_right) * rows, inner)
        return (folded @ right).view(batch, heads, rows, right.shape[3])

    @staticmethod
    def gathered(left: torch.Tensor, right: torch.Tensor, group: int) -> torch.Tensor:
        """Return `left.mT @ right`, summed over each `group` heads."""
        batch, heads, rows, _ = left.shape
        folded = (batch, heads // max(1, group), group * rows)
        return left.reshape(*folded, left.shape[3]).mT @ right.reshape(*folded, right.shape[3])


def _blocks(call: AttentionCall) -> Iterator[_QueryBlock]:
    n, m = call.query.shape[2], call.key.shape[2]
    if not call.query.numel() or not call.key.numel():
        return
    for start in range(0, n, ROWS):
        stop = min(n, start + ROWS)
        first, after = 0, m
        if call.window is not None:
            first, after = max(0, start - call.window + 1), min(m, stop - 1 + call.window)
        if call.causal:
            after = min(after, stop)
        if call.ranges is not None and _is_readable(call.ranges):
            part = call.ranges[:, start:stop]
            first = max(first, int(part[..., 0].min()))
            after = min(after, int(part[..., 1].max()))
        if first < after:
            yield _QueryBlock(slice(start, stop), slice(first, after))


def _is_readable(ranges: torch.Tensor) -> bool:
    """Return whether the host reads these numbers without a wait."""
    return ranges.device.type == "cpu" and not isinstance(ranges, FakeTensor)
