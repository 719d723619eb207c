"""The backends of `torch.nn.functional.scaled_dot_product_attention`, one by one.

torch chooses among them by rules of its own. Here each is a provider, so that the fastest one that
supports a call can be measured and chosen. What they share: no limit of the scores, no window, no
ranges, and dropout with random bits of their own, which no reference can repeat. So these calls are
left to other providers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from neaptide_kernels.accelerator import has_attention_backends
from neaptide_kernels.registry import takes

from .call import AttentionCall, AttentionGradient, precise
from .layout import as_output, like, packed

if TYPE_CHECKING:
    from neaptide_kernels.registry import Query, Support

_ATEN = torch.ops.aten
LINES = 32
"""The memory-efficient kernel stores logarithms for a multiple of so many queries."""
_ODD = 8
"""Heads whose size is no multiple of this would need padded copies."""
_OLDEST = (8, 0)
_HALF = (torch.float16, torch.bfloat16)
_Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@takes(AttentionCall)
def cpu_flash(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Run torch's flash attention for the CPU."""
    with torch.autocast(call.query.device.type, enabled=False):
        output, sums = _ATEN._scaled_dot_product_flash_attention_for_cpu(
            *tensors_of(call), 0.0, call.causal,
            attn_mask=_added(call), scale=call.factor,
        )  # fmt: skip
    return as_output(output, call), sums.contiguous()


@takes(AttentionGradient)
def cpu_flash_backward(of: AttentionGradient) -> _Three:
    """Run the backward of torch's flash attention for the CPU."""
    call = of.call
    with torch.autocast(call.query.device.type, enabled=False):
        gradients = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
            packed(of.gradient), *tensors_of(call),
            of.output, of.logsumexp, 0.0, call.causal, attn_mask=_added(call), scale=call.factor,
        )  # fmt: skip
    return gathered(gradients, call)


@takes(AttentionCall)
def flash(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Run FlashAttention-2 as torch ships it for GPUs."""
    output, sums, *_ = _ATEN._scaled_dot_product_flash_attention(
        *tensors_of(call), 0.0, call.causal,
        scale=call.factor,
    )  # fmt: skip
    return as_output(output, call), sums.contiguous()


@takes(AttentionGradient)
def flash_backward(of: AttentionGradient) -> _Three:
    """Run the backward of FlashAttention-2 as torch ships it for GPUs."""
    call = of.call
    gradients = _ATEN._scaled_dot_product_flash_attention_backward(
        packed(of.gradient), *tensors_of(call), of.output,
        of.logsumexp, None, None, call.query.shape[2], call.key.shape[2], 0.0, call.causal,
        *_no_random(call), scale=call.factor,
    )  # fmt: skip
    return gathered(gradients, call)


@takes(AttentionCall)
def efficient(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the memory-efficient attention of xFormers, as torch ships it."""
    output, sums, *_ = _ATEN._scaled_dot_product_efficient_attention(
        *tensors_of(call), None, True, 0.0,
        call.causal, scale=call.factor,
    )  # fmt: skip
    return as_output(output, call), sums[..., : call.query.shape[2]].contiguous()


@takes(AttentionGradient)
def efficient_backward(of: AttentionGradient) -> _Three:
    """Run the backward of the memory-efficient attention."""
    call = of.call
    missing = -of.logsumexp.shape[2] % LINES
    *gradients, _ = _ATEN._scaled_dot_product_efficient_attention_backward(
        packed(of.gradient), *tensors_of(call), None,
        of.output, pad(of.logsumexp, (0, missing), value=torch.inf), *_no_random(call), 0.0,
        [True, True, True, False], call.causal, scale=call.factor,
    )  # fmt: skip
    return gathered((gradients[0], gradients[1], gradients[2]), call)


@takes(AttentionCall)
def cudnn(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Run cuDNN's attention."""
    output, sums, *_ = _ATEN._scaled_dot_product_cudnn_attention(
        *tensors_of(call), None, True, 0.0,
        call.causal, scale=call.factor,
    )  # fmt: skip
    return as_output(output, call), sums.reshape(call.query.shape[:3]).contiguous()


@takes(AttentionGradient)
def cudnn_backward(of: AttentionGradient) -> _Three:
    """Run the backward of cuDNN's attention."""
    call = of.call
    gradients = _ATEN._scaled_dot_product_cudnn_attention_backward(
        packed(of.gradient), *tensors_of(call), of.output,
        of.logsumexp[..., None], *_no_random(call), None, None, None, call.query.shape[2],
        call.key.shape[2], 0.0, call.causal, scale=call.factor,
    )  # fmt: skip
    return gathered(gradients, call)


def plain_call(query: Query) -> Support:
    """Return True for a call that any backend of torch supports, or why not."""
    if query["softcap"] is not None:
        return "torch's backends have no softcap"
    if query["window"] is not None or query["ranges"] is not None:
        return "torch's backends have no window and no ranges"
    if query["dropout"]:
        return "torch's backends draw random numbers of their own"
    if query["query"].shape[3] != query["value"].shape[3]:
        return "keys and values of different sizes are left to others"
    if not query["query"].elements or not query["key"].elements:
        return "no queries or no keys"
    return True


def on_cpu(query: Query) -> Support:
    """Return whether `cpu_flash` supports a call, or why not."""
    if query.device != "cpu":
        return "runs on the CPU only"
    if query["causal"] and query["bias"] is not None:
        return "takes causal or a bias, not both"
    return plain_call(query)


def on_cpu_backward(query: Query) -> Support:
    """Return whether `cpu_flash_backward` supports a call, or why not.

    It computes `exp(score - logsumexp)`: beside a bias such as -1e9 on each key of a query, these
    are no probabilities, because float32 has no room for the logarithm of their number.
    """
    bias = query["bias"]
    if bias is not None and bias.dtype != torch.bool:
        return "torch's gradients are wrong beside a bias that is large for each key of a query"
    return on_cpu(query)


def on_gpu(query: Query) -> Support:
    """Return whether `efficient` supports a call, or why not."""
    if query.capability is None:
        return f"runs on GPUs of CUDA only, not on {query.device}"
    if not has_attention_backends():
        return "torch is built without it"
    if query.capability < _OLDEST:
        return f"needs a GPU of capability {_OLDEST[0]}.{_OLDEST[1]} or more"
    if query["bias"] is not None:
        return "a bias is left to others"
    if query["query"].shape[3] % _ODD:
        return f"heads of {query['query'].shape[3]} elements, not a multiple of {_ODD}"
    if query["query"].dtype == torch.float64:
        return "float64 is left to the reference"
    return plain_call(query)


def on_gpu_in_half(query: Query, capability: tuple[int, int], largest: int) -> Support:
    """Return whether a backend for 16 bits supports a call, or why not.

    Args:
        query: the call.
        capability: the least compute capability.
        largest: the largest head, in elements.
    """
    if query.capability is not None and query.capability < capability:
        return f"needs a GPU of capability {'.'.join(map(str, capability))} or more"
    if query["query"].dtype not in _HALF:
        return "takes float16 and bfloat16"
    if query["query"].shape[3] > largest:
        return f"heads of more than {largest} elements"
    return on_gpu(query)


def tensors_of(call: AttentionCall) -> _Three:
    """Return the query, and a head of the key and of the value for each of its heads."""
    return packed(call.query), _repeated(call.key, call), _repeated(call.value, call)


def _repeated(tensor: torch.Tensor, call: AttentionCall) -> torch.Tensor:
    return packed(tensor) if call.group == 1 else tensor.repeat_interleave(call.group, 1)


def _added(call: AttentionCall) -> torch.Tensor | None:
    """Return the bias as these backends take it: four dimensions, added to the scores."""
    if call.bias is None:
        return None
    bias = call.bias
    if bias.dtype == torch.bool:
        bias = torch.zeros_like(bias, dtype=call.query.dtype).masked_fill_(~bias, -torch.inf)
    shape = (*call.query.shape[:3], call.key.shape[2])
    return bias.to(call.query.dtype).expand(shape)


def gathered(gradients: _Three, call: AttentionCall) -> _Three:
    """Return gradients as the op does: those of a key's head are added up over its queries'."""
    for_query, *others = gradients
    batch, heads = call.key.shape[:2]
    for_key, for_value = (
        like(one, tensor)
        if call.group == 1
        else like(
            one.reshape(batch, heads, call.group, *one.shape[2:]).sum(2, dtype=precise(one.dtype)),
            tensor,
        )
        for one, tensor in zip(others, (call.key, call.value), strict=True)
    )
    return like(for_query, call.query), for_key, for_value


def _no_random(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a seed and an offset for a backward without dropout."""
    zero = torch.zeros((), dtype=torch.int64, device=call.query.device)
    return zero, zero.clone()
