"""The arguments of the ops `attention` and `attention_backward`, and their checks."""

from __future__ import annotations

from typing import NamedTuple

import torch

_MATRICES = 4
"""Dimensions of a batch of heads of matrices."""
_BOUNDS = 2
_INTEGERS = (torch.int32, torch.int64)


class AttentionCall(NamedTuple):
    """Arguments of `attention`; see `attention` in `attend.py`, which most callers use."""

    query: torch.Tensor
    """Floating `[batch, heads, n, d]`."""
    key: torch.Tensor
    """`[batch, kv_heads, m, d]`; each of its heads serves `heads / kv_heads` heads of the query."""
    value: torch.Tensor
    """`[batch, kv_heads, m, d_value]`."""
    bias: torch.Tensor | None = None
    """Broadcasts to `[batch, heads, n, m]`: added to the scores, or bool, True where a query may
    see a key. It has no gradient."""
    ranges: torch.Tensor | None = None
    """int32 `[batch, n, 2]`: a query sees only keys from the first number up to, but without, the
    second one."""
    seed: torch.Tensor | None = None
    """int64 `[]`, for dropout."""
    causal: bool = False
    """A query sees no key after its own place. Needs as many keys as queries."""
    window: int | None = None
    """A query sees only keys less than this number of places away, on either side. Needs as many
    keys as queries."""
    scale: float | None = None
    """Factor of the scores; None means `d ** -0.5`."""
    softcap: float | None = None
    """Limits each score `s` to `softcap * tanh(s / softcap)`, before the bias is added."""
    dropout: float = 0.0
    """Share of the probabilities that are set to zero."""

    @property
    def factor(self) -> float:
        """The factor of the scores."""
        size = self.query.shape[-1]
        return float(size**-0.5 if self.scale is None else self.scale)

    @property
    def group(self) -> int:
        """The number of heads of the query that a head of the key serves."""
        return self.query.shape[1] // max(1, self.key.shape[1])


class AttentionGradient(NamedTuple):
    """Arguments of `attention_backward`: a gradient, the results of `attention`, its arguments."""

    gradient: torch.Tensor
    """The gradient of the output, `[batch, heads, n, d_value]`."""
    output: torch.Tensor
    logsumexp: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    bias: torch.Tensor | None = None
    ranges: torch.Tensor | None = None
    seed: torch.Tensor | None = None
    causal: bool = False
    window: int | None = None
    scale: float | None = None
    softcap: float | None = None
    dropout: float = 0.0

    @property
    def call(self) -> AttentionCall:
        """The arguments of the call of `attention`."""
        return AttentionCall(*self[3:])


def precise(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of scores and of their sums: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def check(call: AttentionCall) -> None:
    """Raise ValueError, in one line, if the arguments do not match."""
    _check_tensors(call)
    _check_bias(call)
    _check_ranges(call)
    _check_numbers(call)


def check_gradient(call: AttentionGradient) -> None:
    """Raise ValueError, in one line, if the arguments do not match."""
    check(call.call)
    shape = [*call.query.shape[:3], call.value.shape[-1]]
    for name, tensor in (("gradient", call.gradient), ("output", call.output)):
        if list(tensor.shape) != shape or tensor.dtype != call.query.dtype:
            msg = f"{name} is {_said(tensor)}; should be {call.query.dtype} {shape}"
            raise ValueError(msg)
    wanted = precise(call.query.dtype)
    if list(call.logsumexp.shape) != shape[:3] or call.logsumexp.dtype != wanted:
        msg = f"logsumexp is {_said(call.logsumexp)}; should be {wanted} {shape[:3]}"
        raise ValueError(msg)


def _check_tensors(call: AttentionCall) -> None:
    query, key, value = call[:3]
    shapes = ", ".join(
        f"{name} {list(tensor.shape)}"
        for name, tensor in (("query", query), ("key", key), ("value", value))
    )
    if not query.dim() == key.dim() == value.dim() == _MATRICES:
        msg = f"{shapes}: attention takes [batch, heads, tokens, d]; use unsqueeze or view"
        raise ValueError(msg)
    if not (
        query.shape[0] == key.shape[0] == value.shape[0]
        and key.shape[1:3] == value.shape[1:3]
        and query.shape[3] == key.shape[3]
    ):
        msg = f"{shapes}: the batch, the keys' and values' heads and tokens, and d should be equal"
        raise ValueError(msg)
    if not query.shape[3]:
        msg = f"{shapes}: d should be at least 1"
        raise ValueError(msg)
    heads, of_key = query.shape[1], key.shape[1]
    if of_key != heads and (not of_key or heads % of_key):
        msg = f"{shapes}: {heads} heads of the query are no multiple of the key's {of_key}"
        raise ValueError(msg)
    for name, tensor in (("key", key), ("value", value)):
        if tensor.dtype != query.dtype:
            msg = f"{name} is {tensor.dtype}, query {query.dtype}; convert one, or use autocast"
            raise ValueError(msg)
    if not query.is_floating_point():
        msg = f"attention takes floating tensors (query is {query.dtype})"
        raise ValueError(msg)
    for name, given in (("key", key), ("value", value), ("bias", call.bias), ("seed", call.seed)):
        if given is not None and given.device != query.device:
            msg = f"{name} is on {given.device}, query on {query.device}; put them on one"
            raise ValueError(msg)


def _check_bias(call: AttentionCall) -> None:
    if call.bias is None:
        return
    shape = [*call.query.shape[:3], call.key.shape[2]]
    own = list(call.bias.shape)
    fits = len(own) <= len(shape) and all(
        size in (1, wanted) for size, wanted in zip(own[::-1], shape[::-1], strict=False)
    )
    if not fits or not (call.bias.dtype == torch.bool or call.bias.is_floating_point()):
        msg = f"bias is {_said(call.bias)}; should be bool or floating and broadcast to {shape}"
        raise ValueError(msg)


def _check_ranges(call: AttentionCall) -> None:
    if call.ranges is None:
        return
    shape = [call.query.shape[0], call.query.shape[2], _BOUNDS]
    if call.ranges.dtype != torch.int32 or list(call.ranges.shape) != shape:
        msg = f"ranges is {_said(call.ranges)}; should be torch.int32 {shape}"
        raise ValueError(msg)
    if call.ranges.device != call.query.device:
        msg = f"ranges is on {call.ranges.device}, query on {call.query.device}; put them on one"
        raise ValueError(msg)


def _check_numbers(call: AttentionCall) -> None:
    n, m = call.query.shape[2], call.key.shape[2]
    if (call.causal or call.window is not None) and n != m:
        kind = "causal" if call.causal else "window"
        msg = f"{kind}: {n} queries and {m} keys; they should be as many, or use ranges"
        raise ValueError(msg)
    if call.window is not None and call.window < 1:
        msg = f"window must be at least 1 (got {call.window})"
        raise ValueError(msg)
    for name, number in (("scale", call.scale), ("softcap", call.softcap)):
        if number is not None and not 0 < number < float("inf"):
            msg = f"{name} must be more than 0 and finite, or None (got {number})"
            raise ValueError(msg)
    if not 0 <= call.dropout < 1:
        msg = f"dropout must be in [0, 1) (got {call.dropout})"
        raise ValueError(msg)
    if call.dropout and (
        call.seed is None or call.seed.dtype != torch.int64 or call.seed.numel() != 1
    ):
        got = "None" if call.seed is None else _said(call.seed)
        msg = f"dropout needs a seed, torch.int64 of one element (got {got})"
        raise ValueError(msg)


def check_documents(documents: torch.Tensor) -> None:
    """Raise ValueError, in one line, if these are not numbers of documents."""
    if documents.dim() != _BOUNDS or documents.dtype not in _INTEGERS:
        msg = f"documents is {_said(documents)}; should be integers [batch, tokens]"
        raise ValueError(msg)


def _said(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"
