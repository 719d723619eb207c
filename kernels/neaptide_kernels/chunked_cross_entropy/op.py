"""The op `chunked_cross_entropy`, its derivative and its providers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels import built
from neaptide_kernels.registry import KERNELS, OpSpec, Provider, define
from neaptide_kernels.support import no_triton, triton_version

from . import in_place, on_inductor, reference, tuning
from .checks import check
from .chunks import precise
from .trials import ALLOWED, agree, large, samples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide_kernels.registry import Query, Support

_PIECE = 2**22
"""Largest number of elements scaled in one operation."""


def _check(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    chunk: int,
    _ignore_index: int,
    softcap: float | None,
    dtype: torch.dtype | None,
    *_: Any,
) -> None:
    check(hidden, weight, bias, labels, chunk, softcap, cast=dtype is not None)
    if hidden.dim() != 2:  # noqa: PLR2004 - a matrix
        msg = f"hidden {list(hidden.shape)}: the op takes [tokens, d]"
        raise ValueError(msg)


def _fake(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,  # noqa: ARG001 - the schema's
    chunk: int = 1024,  # noqa: ARG001 - the schema's
    ignore_index: int = -100,  # noqa: ARG001 - the schema's
    softcap: float | None = None,  # noqa: ARG001 - the schema's
    dtype: torch.dtype | None = None,
    for_hidden: bool = False,
    for_weight: bool = False,
    for_bias: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    dtype = dtype or hidden.dtype
    kind: dict[str, Any] = {"dtype": precise(dtype), "device": hidden.device}
    return (
        torch.empty((), **kind),
        torch.empty(hidden.shape if for_hidden else 0, dtype=dtype, device=hidden.device),
        torch.empty(weight.shape if for_weight else 0, **kind),
        torch.empty(weight.shape[0] if for_bias and bias is not None else 0, **kind),
    )


def _setup_context(ctx: Any, inputs: Sequence[Any], output: Sequence[torch.Tensor]) -> None:
    hidden, weight, bias, labels, *options = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    ctx.gradients = tuple(output[1:])
    ctx.options = options[:4]
    ctx.computed = options[4:]
    ctx.save_for_backward(hidden, weight, bias, labels)


def _backward(
    ctx: Any, gradient: torch.Tensor | None, *_: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:
    nothing = (None,) * (1 + len(ctx.options) + len(ctx.computed))
    needed = ctx.needs_input_grad[:3]
    if gradient is None:
        return (None, None, None, *nothing)
    again = torch.is_grad_enabled()
    with torch.no_grad():
        # `ctx` drops its reference to the sums, so they become the gradients without a copy. A
        # second backward through a retained graph computes the sums again.
        sums, ctx.gradients = ctx.gradients, None
        if sums is None or any(
            want and not has for want, has in zip(needed, ctx.computed, strict=True)
        ):
            sums = chunked_cross_entropy(*ctx.saved_tensors, *ctx.options, *needed)[1:]
        results = [
            _scaled(total, gradient, tensor.dtype) if want else None
            for want, total, tensor in zip(needed, sums, ctx.saved_tensors[:3], strict=True)
        ]
    if again:
        inputs = [tensor for tensor in (gradient, *ctx.saved_tensors[:3]) if tensor is not None]
        results = [
            None if result is None else _Final.apply(result, *inputs)  # type: ignore[no-untyped-call]  # torch leaves it so
            for result in results
        ]
    return (*results, *nothing)


class _Final(torch.autograd.Function):
    """A gradient that cannot be differentiated again with respect to the inputs."""

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 - torch's
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:  # noqa: ARG004 - torch's
        msg = (
            "chunked cross-entropy has no second derivative; if you need one, use "
            "torch.nn.functional.cross_entropy on all logits"
        )
        raise RuntimeError(msg)


def _scaled(total: torch.Tensor, factor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return `total * factor` in `dtype`; if `total` has this dtype, `total` is overwritten."""
    if type(total) is not torch.Tensor:
        # A traced graph must not change the results of its forward. The compiler fuses this line.
        return (total.to(factor.dtype) * factor).to(dtype)
    if total.dtype == dtype == factor.dtype:
        return total.mul_(factor)
    scaled = total if total.dtype == dtype else torch.empty_like(total, dtype=dtype)
    # torch rounds the factor of a 16-bit tensor to 16 bits, so pieces are scaled in float32.
    for start in range(0, total.numel(), _PIECE):
        part = slice(start, start + _PIECE)
        scaled.view(-1)[part] = total.view(-1)[part].to(factor.dtype) * factor
    return scaled


def _flops(
    hidden: Sequence[int],
    weight: Sequence[int],
    *_: Any,
    out_shape: Sequence[Sequence[int]],
    **__: Any,
) -> int:
    """Count the FLOPs of the products for the logits and the gradients of `hidden` and `weight`."""
    gradients = sum(len(shape) == len(hidden) for shape in out_shape[1:3])
    return 2 * hidden[0] * hidden[1] * weight[0] * (1 + gradients)


def _logits_bytes(query: Query) -> int:
    tokens = min(query["chunk"], query["hidden"].shape[0])
    return int(tokens * query["weight"].shape[0] * _dtype(query).itemsize)


def _precise_bytes(query: Query) -> int:
    """Count the bytes of a chunk's logits, their float32 copy, and the softcap's derivative."""
    dtype = _dtype(query)
    copies = (dtype != precise(dtype)) + (query["softcap"] is not None)
    narrow = _logits_bytes(query)
    return narrow + copies * (narrow // dtype.itemsize) * precise(dtype).itemsize


def _dtype(query: Query) -> torch.dtype:
    dtype: torch.dtype = query["dtype"] or query["hidden"].dtype
    return dtype


def _supports(query: Query) -> Support:
    reason = no_triton(query)
    if reason:
        return reason
    if _dtype(query) == torch.float64:
        return "float64 is left to the reference"
    if not query["weight"].elements:
        return "an empty weight is left to the reference"
    return True


chunked_cross_entropy = define(
    OpSpec(
        name="chunked_cross_entropy",
        summary="a head's cross-entropy and its gradients by chunks of tokens",
        reference=reference.chunked_cross_entropy,
        fake=_fake,
        check=_check,
        setup_context=_setup_context,
        backward=_backward,
        flops=_flops,
        samples=samples,
        large=large,
        timed_by={"chunk"},
        agree=agree,
        tolerances=ALLOWED,
    )
)
"""See `reference.chunked_cross_entropy`. Loss functions call `loss.chunked_cross_entropy`."""

TORCH = Provider(
    op="chunked_cross_entropy",
    name="torch",
    run=in_place.chunked_cross_entropy,
    plain=True,
    priority=5,
    workspace_bytes=_precise_bytes,
)
INDUCTOR = built.provider(
    "chunked_cross_entropy",
    on_inductor.chunked_cross_entropy,
    on_inductor.recipe_of,
    workspace_bytes=_precise_bytes,
)
for provider in (TORCH, INDUCTOR):
    KERNELS.add(provider)

TRITON = (
    Provider(
        op="chunked_cross_entropy",
        name="triton",
        run=tuning.chunked_cross_entropy,
        supports=_supports,
        priority=10,
        version=f"{triton_version()}/1",
        workspace_bytes=_logits_bytes,
        configs=tuning.configs,
    ),
)
"""Providers that the plugin `triton-kernels` adds to a run."""
