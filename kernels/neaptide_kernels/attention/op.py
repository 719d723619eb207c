"""The ops `attention` and `attention_backward`, and their providers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.registry import KERNELS, OpSpec, Provider, define, takes
from neaptide_kernels.support import installed, triton_version

from . import chunked, flex, libraries, reference, torch_backends
from .call import AttentionCall, AttentionGradient, check, check_gradient
from .layout import new_logsumexp, new_output
from .on_triton import described, tuning
from .trials import (
    ALLOWED,
    ALLOWED_GRADIENT,
    agree,
    gradient_samples,
    large,
    large_gradient,
    samples,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neaptide_kernels.registry import Query, Support

_TENSORS = 6
"""Tensors among the arguments of `attention`: they come first."""


@takes(AttentionCall)
def _check(call: AttentionCall) -> None:
    check(call)


@takes(AttentionGradient)
def _check_backward(call: AttentionGradient) -> None:
    check_gradient(call)


@takes(AttentionCall)
def _fake(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    return new_output(call), new_logsumexp(call)


@takes(AttentionGradient)
def _fake_backward(of: AttentionGradient) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(of.query), torch.empty_like(of.key), torch.empty_like(of.value)


def _setup_context(ctx: Any, inputs: Sequence[Any], output: Sequence[torch.Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.options = inputs[_TENSORS:]
    ctx.save_for_backward(*output, *inputs[:_TENSORS])


def _backward(
    ctx: Any, gradient: torch.Tensor | None, _: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:
    rest = (None,) * (_TENSORS - 3 + len(ctx.options))
    if gradient is None:
        return (None, None, None, *rest)
    gradients = attention_backward(gradient, *ctx.saved_tensors, *ctx.options)
    needed = ctx.needs_input_grad
    return (
        *(one if want else None for one, want in zip(gradients, needed, strict=False)),
        *rest,
    )


def _products(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> int:
    return 2 * query[0] * query[1] * query[2] * key[2] * (query[3] + value[3])


def _flops(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any
) -> int:
    """Count the FLOPs of both products, as torch does: as if each query saw each key."""
    return _products(query, key, value)


def _flops_backward(
    _gradient: Sequence[int], _output: Sequence[int], _sums: Sequence[int],
    query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any,
) -> int:  # fmt: skip
    """Count the FLOPs of the five products of a backward."""
    scores = 2 * query[0] * query[1] * query[2] * key[2] * query[3]
    return 2 * _products(query, key, value) + scores


def _least(*given: Any, out_shape: Any = None) -> int:  # noqa: ARG001 - as torch calls it
    """Count the FLOPs of both products for the pairs that a query certainly sees."""
    call = AttentionCall(*given)
    return _flops(*given) * _certain(call) // _all_pairs(call)


def _least_backward(*given: Any, out_shape: Any = None) -> int:  # noqa: ARG001 - the same
    call = AttentionGradient(*given).call
    return _flops_backward(*given) * _certain(call) // _all_pairs(call)


def _all_pairs(call: AttentionCall) -> int:
    """Return the pairs of a query and a key; at least 1."""
    query: Any = call.query
    key: Any = call.key
    return max(1, int(query[2]) * int(key[2]))


def _certain(call: AttentionCall) -> int:
    """Return how many of these pairs no option hides; tensors are given as shapes.

    Ranges and a bias may hide any of them.
    """
    if call.ranges is not None or call.bias is not None:
        return 0
    query: Any = call.query
    if not call.causal and call.window is None:
        return _all_pairs(call)
    n = int(query[2])
    near = n if call.window is None else min(call.window, n)
    before = near * (near + 1) // 2 + (n - near) * near
    return before if call.causal else 2 * before - n


attention = define(
    OpSpec(
        name="attention",
        summary="softmax attention: causal, windows, documents, grouped heads, softcap, dropout",
        reference=reference.attention,
        fake=_fake,
        check=_check,
        setup_context=_setup_context,
        backward=_backward,
        flops=_flops,
        least_flops=_least,
        samples=samples,
        large=large,
        timed_by={"window"},
        tolerances=ALLOWED,
        agree=agree,
    )
)
"""See `reference.attention`. Models call `attend.attention`."""

attention_backward = define(
    OpSpec(
        name="attention_backward",
        summary="the gradients of attention, from its output and logarithms of sums",
        reference=reference.attention_backward,
        fake=_fake_backward,
        check=_check_backward,
        flops=_flops_backward,
        least_flops=_least_backward,
        samples=gradient_samples,
        large=large_gradient,
        timed_by={"window"},
        tolerances=ALLOWED_GRADIENT,
    )
)
"""See `reference.attention_backward`. Any provider continues what any other has computed."""


def _both(
    name: str,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    **facts: Any,
) -> tuple[Provider, Provider]:
    return (
        Provider(op="attention", name=name, run=forward, **facts),
        Provider(op="attention_backward", name=name, run=backward, **facts),
    )


def _in_half(capability: tuple[int, int], largest: int) -> Callable[[Query], Support]:
    return partial(torch_backends.on_gpu_in_half, capability=capability, largest=largest)


TORCH = (
    *_both(
        "blocks",
        chunked.attention,
        chunked.attention_backward,
        plain=True,
        priority=5,
        workspace_bytes=chunked.workspace_bytes,
    ),
    Provider(
        op="attention",
        name="cpu-flash",
        run=torch_backends.cpu_flash,
        supports=torch_backends.on_cpu,
        plain=True,
        priority=20,
    ),
    Provider(
        op="attention_backward",
        name="cpu-flash",
        run=torch_backends.cpu_flash_backward,
        supports=torch_backends.on_cpu_backward,
        plain=True,
        priority=20,
    ),
    *_both(
        "flash",
        torch_backends.flash,
        torch_backends.flash_backward,
        supports=_in_half((8, 0), 256),
        priority=20,
    ),
    *_both(
        "cudnn",
        torch_backends.cudnn,
        torch_backends.cudnn_backward,
        supports=_in_half((9, 0), 128),
        priority=15,
    ),
    Provider(
        op="attention",
        name="flex",
        run=flex.attention,
        supports=flex.supports,
        priority=4,
    ),
    *_both(
        "efficient",
        torch_backends.efficient,
        torch_backends.efficient_backward,
        supports=torch_backends.on_gpu,
        priority=12,
    ),
)
LIBRARIES = (
    *_both(
        "flash-attn",
        libraries.flash_attn,
        libraries.flash_attn_backward,
        supports=libraries.by_flash_attn,
        priority=18,
        version=f"{installed('flash-attn')}/1",
    ),
    *_both(
        "xformers",
        libraries.xformers,
        libraries.xformers_backward,
        supports=libraries.by_xformers,
        priority=11,
        version=f"{installed('xformers')}/1",
    ),
)
for _provider in (*TORCH, *LIBRARIES):
    KERNELS.add(_provider)

_TRITON = f"{triton_version()}/2"
TRITON = (
    *_both(
        "triton",
        tuning.attention,
        tuning.attention_backward,
        supports=tuning.supports,
        priority=10,
        version=_TRITON,
        configs=tuning.configs,
    ),
    *_both(
        "triton-tma",
        described.attention,
        described.attention_backward,
        supports=described.supports,
        priority=9,
        version=_TRITON,
        configs=described.configs,
    ),
)
"""Providers that the plugins `triton-kernels` and `flash-attention` add to a run."""
