"""Attention of the libraries flash-attn and xFormers, where they are installed.

Both need a GPU. Neither repeats the random bits of a reference, so calls with dropout are left to
others, and so are masks that are no rule of places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.nn.functional import pad

from neaptide_kernels.registry import takes
from neaptide_kernels.support import installed

from .call import AttentionCall, AttentionGradient
from .layout import as_output, like, packed
from .torch_backends import LINES, gathered, on_gpu_in_half, plain_call, tensors_of

if TYPE_CHECKING:
    from neaptide_kernels.registry import Query, Support

_Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_OLDEST = (2, 7)
"""The first flash-attn whose functions take the sides of a window one by one."""
_ITS_OWN = ("window", "softcap")
"""What flash-attn supports and torch's backends do not."""
_LARGEST = 256


def by_flash_attn(query: Query) -> Support:
    """Return whether flash-attn supports a call, or why not."""
    found = installed("flash-attn")
    if found is None:
        return "flash-attn is not installed: pip install flash-attn --no-build-isolation"
    if tuple(map(int, found.split(".")[:2])) < _OLDEST:
        return f"flash-attn {found} is older than {'.'.join(map(str, _OLDEST))}"
    if query["ranges"] is not None or query["dropout"]:
        return "flash-attn is used without ranges and without dropout"
    options = [(name, None if name in _ITS_OWN else one) for name, one in query.options]
    return on_gpu_in_half(attrs.evolve(query, options=tuple(options)), (8, 0), _LARGEST)


def by_xformers(query: Query) -> Support:
    """Return whether xFormers supports a call, or why not."""
    if installed("xformers") is None:
        return "xFormers is not installed: pip install xformers"
    if plain_call(query) is not True:
        return "xFormers is used without window, ranges, softcap and dropout"
    return on_gpu_in_half(query, (8, 0), _LARGEST)


@takes(AttentionCall)
def flash_attn(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Run FlashAttention-2 (Dao 2023) of the library flash-attn."""
    from flash_attn import flash_attn_interface  # noqa: PLC0415 - where it is installed

    output, sums, *_ = flash_attn_interface._flash_attn_forward(  # noqa: SLF001 - it returns the sums
        *map(_by_token, call[:3]), 0.0, call.factor, call.causal,
        *_window(call), float(call.softcap or 0.0), None, False,
    )  # fmt: skip
    return as_output(output.transpose(1, 2), call), sums.contiguous()


@takes(AttentionGradient)
def flash_attn_backward(of: AttentionGradient) -> _Three:
    """Run the backward of the library flash-attn."""
    from flash_attn import flash_attn_interface  # noqa: PLC0415 - where it is installed

    call = of.call
    given = [_by_token(one).contiguous() for one in call[:3]]
    gradients = [torch.empty_like(one) for one in given]
    flash_attn_interface._flash_attn_backward(  # noqa: SLF001 - as above
        _by_token(of.gradient), *given, _by_token(of.output), of.logsumexp.contiguous(),
        *gradients, 0.0, call.factor, call.causal, *_window(call), float(call.softcap or 0.0),
        None, torch.are_deterministic_algorithms_enabled(), None,
    )  # fmt: skip
    for_query, for_key, for_value = (one.transpose(1, 2) for one in gradients)
    return like(for_query, call.query), like(for_key, call.key), like(for_value, call.value)


@takes(AttentionCall)
def xformers(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the memory-efficient attention of the library xFormers."""
    from xformers.ops import fmha  # noqa: PLC0415 - where it is installed

    output, sums = fmha.memory_efficient_attention_forward_requires_grad(
        *map(_by_token, tensors_of(call)), _bias(fmha, call), 0.0, call.factor
    )
    # Some of its kernels return sums for a multiple of so many queries.
    return as_output(output.transpose(1, 2), call), sums[..., : call.query.shape[2]].contiguous()


@takes(AttentionGradient)
def xformers_backward(of: AttentionGradient) -> _Three:
    """Run the backward of the library xFormers."""
    from xformers.ops import fmha  # noqa: PLC0415 - where it is installed

    call = of.call
    missing = -of.logsumexp.shape[2] % LINES
    gradients = fmha.memory_efficient_attention_backward(
        _by_token(of.gradient), _by_token(of.output),
        pad(of.logsumexp, (0, missing), value=torch.inf), *map(_by_token, tensors_of(call)),
        _bias(fmha, call), 0.0, call.factor,
    )  # fmt: skip
    for_query, for_key, for_value = (one.transpose(1, 2) for one in gradients)
    return gathered((for_query, for_key, for_value), call)


def _by_token(tensor: torch.Tensor) -> torch.Tensor:
    """Return `[batch, tokens, heads, d]` of `[batch, heads, tokens, d]`, with contiguous rows."""
    return packed(tensor).transpose(1, 2)


def _window(call: AttentionCall) -> tuple[int, int]:
    """Return how many keys before and after its own place a query sees; -1 for all."""
    if call.window is None:
        return (-1, 0) if call.causal else (-1, -1)
    return call.window - 1, 0 if call.causal else call.window - 1


def _bias(fmha: Any, call: AttentionCall) -> Any:
    return fmha.attn_bias.LowerTriangularMask() if call.causal else None
