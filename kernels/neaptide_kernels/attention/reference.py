"""Attention in plain torch with all scores at once: the reference for the kernels."""

from __future__ import annotations

import torch

from neaptide_kernels.registry import takes

from .call import AttentionCall, AttentionGradient, precise
from .layout import as_output, like
from .scores import kept, part_of, visible


@takes(AttentionCall)
def attention(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `softmax(query @ key.T * scale) @ value`, and the logarithms of the softmax's sums.

    A query that sees no key has the output 0 and the logarithm 0. Scores are computed in at least
    float32.

    Returns:
        The output `[batch, heads, n, d_value]` in the query's dtype, and the natural logarithms
        `[batch, heads, n]` in float32 or float64.
    """
    with torch.autocast(call.query.device.type, enabled=False):
        scores, _, _ = _scores(call)
        logsumexp = scores.logsumexp(-1)
        logsumexp = logsumexp.masked_fill(logsumexp == -torch.inf, 0.0)
        probabilities = _dropped(call, _softmax(scores))
        output = probabilities @ _repeated(call.value, call)
    return as_output(output, call), logsumexp


@takes(AttentionGradient)
def attention_backward(
    of: AttentionGradient,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of `query`, `key` and `value`."""
    call = of.call
    kind = precise(call.query.dtype)
    gradient = of.gradient.to(kind)
    with torch.autocast(call.query.device.type, enabled=False):
        scores, slope, raw = _scores(call)
        probabilities = _softmax(scores)
        for_value = _dropped(call, probabilities).mT @ gradient
        for_kept = _dropped(call, gradient @ _repeated(call.value, call).mT)
        through = (gradient * of.output.to(kind)).sum(-1, keepdim=True)
        for_scores = probabilities * (for_kept - through) * slope * call.factor
        for_query = for_scores @ raw[1]
        for_key = for_scores.mT @ raw[0]
    return (
        like(for_query, call.query),
        like(_summed(for_key, call), call.key),
        like(_summed(for_value, call), call.value),
    )


def _scores(
    call: AttentionCall,
) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Return the scores, the slope of the softcap, and the query and key from which they come."""
    everything = (slice(0, call.query.shape[2]), slice(0, call.key.shape[2]))
    query, key = call.query.to(precise(call.query.dtype)), _repeated(call.key, call)
    scores = query @ key.mT * call.factor
    slope = torch.ones((), dtype=scores.dtype, device=scores.device)
    if call.softcap is not None:
        limited = torch.tanh(scores / call.softcap)
        scores, slope = limited * call.softcap, 1 - limited * limited
    if call.bias is not None and call.bias.dtype != torch.bool:
        scores = scores + part_of(call.bias, *everything)
    mask = visible(call, *everything)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores, slope, (query, key)


def _softmax(scores: torch.Tensor) -> torch.Tensor:
    """Return the softmax, 0 for a query that sees no key.

    `exp(score - logsumexp)` would be wrong beside a bias such as -1e9 on each key.
    """
    unseeing = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.softmax(-1).masked_fill(unseeing, 0.0)


def _dropped(call: AttentionCall, probabilities: torch.Tensor) -> torch.Tensor:
    if not call.dropout:
        return probabilities
    keep = kept(call, slice(0, call.query.shape[2]), slice(0, call.key.shape[2]))
    return probabilities * keep / (1 - call.dropout)


def _repeated(tensor: torch.Tensor, call: AttentionCall) -> torch.Tensor:
    return tensor.to(precise(tensor.dtype)).repeat_interleave(call.group, 1)


def _summed(tensor: torch.Tensor, call: AttentionCall) -> torch.Tensor:
    batch, _, *matrix = tensor.shape
    return tensor.view(batch, call.key.shape[1], call.group, *matrix).sum(2)
