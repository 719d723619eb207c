"""FlexAttention of torch, compiled: the forward of all calls without dropout, on a GPU.

Its backward exists only inside autograd, behind its own forward. Any provider of
`attention_backward` continues from the output and the logarithms of sums.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.accelerator import has_attention_backends
from neaptide_kernels.registry import takes
from neaptide_kernels.support import no_triton

from .call import AttentionCall
from .layout import as_output

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide_kernels.registry import Query, Support

BLOCK = 128
"""Queries and keys of a block of FlexAttention's masks."""
_LEAST = 16
"""Elements of a head that FlexAttention has, at least."""


def supports(query: Query) -> Support:
    """Return whether FlexAttention supports a call, or why not."""
    if query.device == "cpu":
        return "FlexAttention returns no logarithms of sums on a CPU"
    reason = no_triton(query)
    if reason:
        return reason
    if not has_attention_backends():
        return "this torch is built without CUDA"
    if query["dropout"]:
        return "FlexAttention has no dropout"
    if query["query"].dtype == torch.float64:
        return "float64 is left to the reference"
    if min(query[name].shape[3] for name in ("query", "value")) < _LEAST:
        return f"a head has fewer than {_LEAST} elements"
    if min(query["query"].shape[2], query["key"].shape[2]) < BLOCK:
        return f"fewer than {BLOCK} tokens are not worth the seconds of compiling"
    return True


@cache
def compiled() -> Callable[..., Any]:
    """Return FlexAttention; it is compiled for each shape that it is called with.

    With `fullgraph`, too many shapes are an error. Otherwise torch would store all scores instead.
    """
    from torch.nn.attention.flex_attention import flex_attention  # noqa: PLC0415 - a second to load

    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


@takes(AttentionCall)
def attention(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Run FlexAttention (Dong et al., 2024)."""
    from torch.nn.attention.flex_attention import AuxRequest  # noqa: PLC0415 - as above

    output, aux = compiled()(
        *call[:3],
        score_mod=_score(call),
        block_mask=_mask(call),
        scale=call.factor,
        enable_gqa=call.group > 1,
        return_aux=AuxRequest(lse=True),
    )
    sums = aux.lse.masked_fill(aux.lse == -torch.inf, 0.0)  # a query without keys
    return as_output(output, call), sums.contiguous()


def _score(call: AttentionCall) -> Callable[..., torch.Tensor] | None:
    """Return what is done to each score: the softcap, and then a bias."""
    softcap, bias = call.softcap, _every(call)
    if bias is not None and bias.dtype == torch.bool:
        bias = None
    if softcap is None and bias is None:
        return None

    def changed(
        score: torch.Tensor, batch: torch.Tensor, head: torch.Tensor, row: torch.Tensor,
        column: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        return score if bias is None else score + bias[batch, head, row, column]

    return changed


def _every(call: AttentionCall) -> torch.Tensor | None:
    """Return the bias as if it had an element for each pair; its memory stays as it is."""
    if call.bias is None:
        return None
    return call.bias.expand(*call.query.shape[:3], call.key.shape[2])


def _mask(call: AttentionCall) -> Any:
    """Return the mask; None where every query sees every key."""
    seen = _every(call)
    if seen is not None and seen.dtype != torch.bool:
        seen = None
    if seen is None and not call.causal and call.window is None and call.ranges is None:
        return None
    from torch.nn.attention.flex_attention import BlockMask  # noqa: PLC0415 - as above

    first, after = bounds(call)

    def visible(
        batch: torch.Tensor, head: torch.Tensor, row: torch.Tensor, column: torch.Tensor
    ) -> torch.Tensor:
        inside = (column >= first[batch, row]) & (column < after[batch, row])
        return inside if seen is None else inside & seen[batch, head, row, column]

    some, whole = blocks(first, after, call.key.shape[2])
    if seen is not None:
        whole = torch.zeros_like(whole)
    return BlockMask.from_kv_blocks(
        *_listed(some & ~whole), *_listed(whole), BLOCK_SIZE=BLOCK, mask_mod=visible,
        seq_lengths=(call.query.shape[2], call.key.shape[2]),
    )  # fmt: skip


def bounds(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first key that each query sees and the one after the last, `[batch, n]`."""
    batch, n, m = call.query.shape[0], call.query.shape[2], call.key.shape[2]
    rows = torch.arange(n, device=call.query.device).expand(batch, n)
    first, after = torch.zeros_like(rows), torch.full_like(rows, m)
    if call.ranges is not None:
        first, after = first.maximum(call.ranges[..., 0]), after.minimum(call.ranges[..., 1])
    if call.window is not None:
        first, after = first.maximum(rows - call.window + 1), after.minimum(rows + call.window)
    if call.causal:
        after = after.minimum(rows + 1)
    return first, after


def blocks(first: torch.Tensor, after: torch.Tensor, m: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which blocks of keys some query of a block sees, and which all of them see whole.

    Both are bool, `[batch, 1, blocks of queries, blocks of keys]`. The last block of queries may
    be shorter, and the last block of keys too.
    """
    batch, n = first.shape
    missing = -n % BLOCK
    empty = first >= after

    def over(values: torch.Tensor, other: int) -> torch.Tensor:
        values = torch.nn.functional.pad(values, (0, missing), value=other)
        return values.view(batch, -1, BLOCK)

    starts = torch.arange(0, m, BLOCK, device=first.device)
    ends = (starts + BLOCK).clamp(max=m)
    low = over(first.masked_fill(empty, m), m).amin(2)
    high = over(after.masked_fill(empty, 0), 0).amax(2)
    some = (starts < high[..., None]) & (ends > low[..., None])
    latest, soonest = over(first, 0).amax(2), over(after, m).amin(2)
    whole = (starts >= latest[..., None]) & (ends <= soonest[..., None])
    return some[:, None], whole[:, None] & some[:, None]


def _listed(there: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how many blocks of keys each block of queries has, and their numbers first."""
    order = there.int().argsort(dim=-1, descending=True, stable=True)
    return there.sum(-1).int(), order.int().contiguous()
