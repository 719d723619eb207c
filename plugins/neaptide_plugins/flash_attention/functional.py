"""Replaces `torch.nn.functional.scaled_dot_product_attention` while a context is open."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from neaptide_kernels.attention import attention
from neaptide_toolkit.recompute import other_derivative

from .tally import backends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .tally import Tally

_MATRICES = 4
_open: list[Tally] = []
"""The tallies of the open contexts. A backward has threads of its own, so no thread has a tally."""
_originals: list[Callable[..., Any]] = []
"""torch's two functions, while a context is open."""
_lock = Lock()


@contextmanager
def replaced(tally: Tally) -> Iterator[None]:
    """While the context is open, torch's function computes `attention` where it can.

    `nn.MultiheadAttention` and transformers call this function by its module, so they are served,
    too. Calls that are left as they are compute what torch computes. Contexts may end in any
    order, as those of runs in several threads do; a call counts for the newest.
    """
    with _lock:
        if not _open:
            _originals[:] = (
                functional.scaled_dot_product_attention,
                functional.multi_head_attention_forward,
            )
            functional.scaled_dot_product_attention = _serving(_originals[0])
            functional.multi_head_attention_forward = _watched(_originals[1])
        _open.append(tally)
    try:
        yield
    finally:
        with _lock:
            _open.remove(tally)
            if not _open:
                functional.scaled_dot_product_attention = _originals[0]
                functional.multi_head_attention_forward = _originals[1]


def hindrance(tally: Tally) -> str:
    """Return what around a call needs torch's own function; empty if nothing does.

    The op has no rule for the transforms of `torch.func` and for forward-mode derivatives, which
    would be lost without a word. Inside `sdpa_kernel`, the choice of a backend is the caller's.
    """
    if torch.compiler.is_compiling():
        return ""
    return other_derivative() or ("inside sdpa_kernel" if backends() != tally.allowed else "")


def _left(reason: str) -> None:
    if not torch.compiler.is_compiling():
        for tally in _open[-1:]:
            tally.leave(reason)


def _replaced(mask: torch.Tensor | None) -> None:
    if not torch.compiler.is_compiling():
        for tally in _open[-1:]:
            tally.replace(dense=_is_dense(mask))


def _serving(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def scaled_dot_product_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,  # noqa: FBT001, FBT002 - torch's signature
        scale: float | None = None,
        enable_gqa: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    ) -> torch.Tensor:
        given = (query, key, value, attn_mask, is_causal, enable_gqa)
        reason = _why_not(*given) or _unusual(dropout_p, scale)
        reason = reason or next(filter(None, map(hindrance, _open[-1:])), "")
        if reason:
            _left(reason)
            return original(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                enable_gqa=enable_gqa,
            )  # fmt: skip
        _replaced(attn_mask)
        return attention(
            query, key, value, bias=attn_mask, causal=is_causal, scale=scale, dropout=dropout_p
        )

    return scaled_dot_product_attention


def _watched(original: Callable[..., Any]) -> Callable[..., Any]:
    running = False

    def multi_head_attention_forward(*arguments: Any, **named: Any) -> Any:
        nonlocal running
        if running:  # a default device or another mode of torch sends the call back here
            return original(*arguments, **named)
        # `nn.MultiheadAttention` passes it by name.
        if named.get("need_weights", True):
            _left("nn.MultiheadAttention with need_weights=True")
        running = True
        try:
            return original(*arguments, **named)
        finally:
            running = False

    return multi_head_attention_forward


def _why_not(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,  # noqa: FBT001 - one of several facts
    grouped: bool,  # noqa: FBT001 - the same
) -> str:
    """Return why torch should compute a call itself; empty if `attention` computes the same."""
    tensors = [one for one in (query, key, value, mask) if one is not None]
    if any(one.is_nested or one.layout != torch.strided for one in tensors):
        return "tensors that are not dense"
    if not query.dim() == key.dim() == value.dim() == _MATRICES:
        return "tensors of other than four dimensions"
    if not query.is_floating_point() or not query.numel() or not key.numel():
        return "no elements, or not floating"
    if not query.shape[0] == key.shape[0] == value.shape[0] or key.shape[1] != value.shape[1]:
        return "tensors that broadcast"
    if query.shape[1] != key.shape[1] and (not grouped or query.shape[1] % key.shape[1]):
        return "tensors that broadcast"
    if causal and (mask is not None or query.shape[2] != key.shape[2]):
        return "causal, with a mask or with other keys than queries"
    if mask is not None and mask.requires_grad and torch.is_grad_enabled():
        return "a mask or position bias that is learned"
    return ""


def _unusual(dropout: float, scale: float | None) -> str:
    if not 0 <= dropout < 1:
        return "dropout of everything"
    return "a scale that is not positive" if scale is not None and scale <= 0 else ""


def _is_dense(mask: torch.Tensor | None) -> bool:
    """Return whether a mask has an element for each pair of a query and a key."""
    return mask is not None and mask.dim() > 1 and min(mask.shape[-2:]) > 1
