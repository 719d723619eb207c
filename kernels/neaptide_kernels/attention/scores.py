"""Which keys a query sees, and which probabilities dropout keeps, for some of the queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neaptide_kernels.counter_random import finalized, keyed_bits

if TYPE_CHECKING:
    from .call import AttentionCall

_MASK = 0xFFFFFFFF
_ALL = 4
"""Dimensions of the scores: batch, heads, queries, keys."""


def visible(call: AttentionCall, rows: slice, columns: slice) -> torch.Tensor | None:
    """Return where a query may see a key, bool, broadcasting to `[batch, heads, rows, columns]`.

    None means everywhere. A floating bias does not count.
    """
    device = call.query.device
    queries = torch.arange(rows.start, rows.stop, device=device)[:, None]
    keys = torch.arange(columns.start, columns.stop, device=device)
    masks = []
    if call.causal:
        masks.append(keys <= queries)
    if call.window is not None:
        masks.append((keys - queries).abs() < call.window)
    if call.ranges is not None:
        first, after = call.ranges[:, None, rows, :, None].unbind(3)
        masks.append((keys >= first) & (keys < after))
    if call.bias is not None and call.bias.dtype == torch.bool:
        masks.append(part_of(call.bias, rows, columns))
    if not masks:
        return None
    mask = masks[0]
    for other in masks[1:]:
        mask = mask & other
    return mask


def softmax_(scores: torch.Tensor) -> torch.Tensor:
    """Turn scores into their softmax over the last dimension, in place; return `logsumexp`.

    Rows of -inf become 0, and so does their logarithm. The largest score of a row is taken from it
    first: beside a bias such as -1e9 on each key of a row, float32 has no room for the logarithm.

    Args:
        scores: floating `[..., keys]`, with at least one key.

    Returns:
        The logarithms of the sums, `[..., 1]`.
    """
    largest = scores.amax(-1, keepdim=True)
    largest.masked_fill_(largest == -torch.inf, 0.0)
    sums = scores.sub_(largest).exp_().sum(-1, keepdim=True)
    sums.masked_fill_(sums == 0, 1.0)
    scores.div_(sums)
    return largest.add_(sums.log())


def part_of(bias: torch.Tensor, rows: slice, columns: slice) -> torch.Tensor:
    """Return the bias of some scores; it still broadcasts."""
    bias = bias.reshape((1,) * (_ALL - bias.dim()) + bias.shape)
    if bias.shape[2] > 1:
        bias = bias[:, :, rows]
    return bias[..., columns] if bias.shape[3] > 1 else bias


def kept(call: AttentionCall, rows: slice, columns: slice) -> torch.Tensor:
    """Return which probabilities dropout keeps, bool `[batch, heads, rows, columns]`.

    The bits depend only on the seed and on the place of a score among all scores.
    """
    assert call.seed is not None
    batch, heads, n, _ = call.query.shape
    m, device = call.key.shape[2], call.query.device
    row = torch.arange(batch * heads, device=device).view(batch, heads, 1, 1) * n
    row = row + torch.arange(rows.start, rows.stop, device=device)[:, None]
    places = row * m + torch.arange(columns.start, columns.stop, device=device)
    first, second = keys_of(call.seed)
    bits = keyed_bits(first, second, places)
    return (bits >> 8).float() * 2.0**-24 >= call.dropout


def keys_of(seed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `counter_random.keys` of a seed that the host does not read, 0-dim int64."""
    seed = seed.reshape(())
    first = finalized((seed & _MASK) ^ 0x243F6A88)
    return first, finalized(first ^ ((seed >> 32) & _MASK) ^ 0x85A308D3)
