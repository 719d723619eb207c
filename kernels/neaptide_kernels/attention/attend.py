"""Attention for models: autograd, autocast and dropout by torch's generator."""

from __future__ import annotations

import torch

from . import op
from .call import check_documents


def _may_autocast(kind: str) -> bool:
    return torch.amp.is_autocast_available(kind)


# As `torch.compiler.assume_constant_result` does, which imports the compiler. torch 2.11 cannot
# compile the function.
_may_autocast._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001 - see above


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    ranges: torch.Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
) -> torch.Tensor:
    """Return the attention of each query, `[batch, heads, n, d_value]`, in the query's dtype.

    Under autocast, the dtype is that of autocast. A query that sees no key has the output 0. The
    backward needs the output, one logarithm for each query, and the arguments: no scores are kept.
    There is no second derivative. The seed of dropout is drawn from torch's generator of the
    query's device.

    Args:
        query: floating `[batch, heads, n, d]`.
        key: `[batch, kv_heads, m, d]`; each of its heads serves `heads / kv_heads` heads.
        value: `[batch, kv_heads, m, d_value]`.
        bias: broadcasts to `[batch, heads, n, m]`: added to the scores, or bool, True where a query
            may see a key. It must not require a gradient.
        ranges: int32 `[batch, n, 2]`: a query sees only keys from the first number up to, but
            without, the second one; see `ranges_of_documents`.
        causal: a query sees no key after its own place.
        window: a query sees only keys less than this number of places away, on either side.
        scale: factor of the scores; `d ** -0.5` by default.
        softcap: limits each score `s` to `softcap * tanh(s / softcap)`, before the bias is added.
        dropout: share of the probabilities that are set to zero; the others are scaled up.

    Raises:
        ValueError: the arguments do not match, or the bias requires a gradient.
    """
    if bias is not None and bias.requires_grad and torch.is_grad_enabled():
        msg = (
            "bias requires a gradient, and attention computes none for it; use "
            "torch.nn.functional.scaled_dot_product_attention, or detach the bias"
        )
        raise ValueError(msg)
    kind = query.device.type
    if _may_autocast(kind) and torch.is_autocast_enabled(kind) and query.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(kind)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    seed = None
    if dropout:
        seed = torch.randint(2**62, (), dtype=torch.int64, device=query.device)
    given = (query, key, value, bias, ranges, seed, causal, window, scale, softcap, dropout)
    output: torch.Tensor = op.attention(*given)[0]
    return output


def ranges_of_documents(documents: torch.Tensor) -> torch.Tensor:
    """Return the `ranges` of packed documents, int32 `[batch, tokens, 2]`.

    A token sees the tokens of its own document only. The host does not wait for the device.

    Args:
        documents: integers `[batch, tokens]`. Neighbours with the same number are one document.
            Tokens with a negative number are padding: they see no key, and no token sees them.

    Raises:
        ValueError: not integers of two dimensions.
    """
    check_documents(documents)
    batch, tokens = documents.shape
    places = torch.arange(tokens, device=documents.device).expand(batch, tokens)
    starts = torch.ones_like(documents, dtype=torch.bool)
    starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    first = torch.where(starts, places, 0).cummax(1).values
    # A document ends where the next one starts.
    ends = torch.ones_like(starts)
    ends[:, :-1] = starts[:, 1:]
    after = torch.where(ends, places + 1, tokens).flip(1).cummin(1).values.flip(1)
    after = torch.where(documents < 0, first, after)
    return torch.stack([first, after], -1).int()
