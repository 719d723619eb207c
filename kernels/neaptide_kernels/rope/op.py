"""The op `rope` and its providers. Its derivative is the op itself, transposed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.registry import OpSpec, Provider, Sample, define, per_element
from neaptide_kernels.support import no_triton, triton_version

from . import reference, tuning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neaptide_kernels.registry import Query, Support

ALLOWED = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Largest permitted relative error of a result, by its dtype."""


def _check(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *_: Any) -> None:
    shapes = f"x {list(x.shape)}, cos {list(cos.shape)}, sin {list(sin.shape)}"
    fits = cos.shape == sin.shape and 0 < cos.dim() <= x.dim() and not cos.shape[-1] % 2
    if fits:
        room = (*x.shape[:-1], cos.shape[-1])[x.dim() - cos.dim() :]
        fits = cos.shape[-1] <= x.shape[-1] and all(
            size in {1, wanted} for size, wanted in zip(cos.shape[:-1], room[:-1], strict=True)
        )
    if not fits:
        msg = f"rope: {shapes}; should be [..., d] and twice what broadcasts to [..., r], r even"
        raise ValueError(msg)
    for name, each in (("cos", cos), ("sin", sin)):
        if each.dtype != x.dtype or each.device != x.device or not x.is_floating_point():
            got = f"{name} is {each.dtype} on {each.device}, x {x.dtype} on {x.device}"
            msg = f"rope: {got}; should be floating and alike"
            raise ValueError(msg)


def _setup_context(ctx: Any, inputs: Sequence[Any], output: torch.Tensor) -> None:  # noqa: ARG001 - torch's
    _, cos, sin, ctx.transposed = inputs
    ctx.save_for_backward(cos, sin)


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    for_x, *for_tables, _ = ctx.needs_input_grad
    if any(for_tables):
        msg = "rope has no gradient of cos and sin; detach them, or use torch's operations"
        raise RuntimeError(msg)
    of_x = rope(gradient, *ctx.saved_tensors, not ctx.transposed) if for_x else None
    return of_x, None, None, None


def inputs(
    device: torch.device, dtype: torch.dtype, shape: Sequence[int], width: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return x `[batch, heads, tokens, d]`, and tables `[1, 1, tokens, width]`.

    The halves of the tables differ, which no model's do.
    """
    generator = torch.Generator().manual_seed(sum(shape) + width)
    x = torch.randn(*shape, generator=generator, device="cpu")
    angles = torch.rand(1, 1, shape[2], width, generator=generator, device="cpu") * 6
    cos, sin = angles.cos(), angles.sin()
    return tuple(each.to(device=device, dtype=dtype) for each in (x, cos, sin))  # type: ignore[return-value]  # three


def _samples(device: torch.device) -> Iterator[Sample]:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for shape, width in (
            ((1, 1, 1, 2), 2),
            ((2, 3, 17, 64), 64),
            ((1, 2, 9, 10), 6),
            ((2, 0, 3, 4), 4),
            ((1, 2, 5, 65), 64),
        ):
            for transposed in (False, True):
                name = f"{list(shape)} {dtype}, {width} turned{', transposed' * transposed}"
                given = (*inputs(device, dtype, shape, width), transposed)
                yield Sample(name=name, arguments=given)
    x, cos, sin = inputs(device, torch.float32, (2, 7, 3, 16), 16)
    swapped = x.transpose(1, 2).contiguous().transpose(1, 2)
    yield Sample(name="heads last in memory", arguments=(swapped, cos, sin))
    batch = cos.repeat(2, 1, 1, 1), sin.repeat(2, 1, 1, 1)
    yield Sample(name="tables of each sequence", arguments=(x, *batch))
    yield Sample(
        name="part of a wider tensor", arguments=(x[..., 2:14], cos[..., :12], sin[..., :12])
    )
    yield Sample(name="tables of three dimensions", arguments=(x, cos[0], sin[0]))
    yield Sample(name="strided tables", arguments=(x[..., ::2], cos[..., ::2], sin[..., ::2]))
    tables = (cos.transpose(1, 2), sin.transpose(1, 2))
    yield Sample(name="tokens before heads", arguments=(x.transpose(1, 2), *tables))


def _large(device: torch.device) -> Iterator[Sample]:
    tokens, dtype = (4096, torch.bfloat16) if device.type != "cpu" else (512, torch.float32)
    for heads in (8, 32):
        x, cos, sin = inputs(device, dtype, (2, heads, tokens, 128), 128)
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
        yield Sample(name=f"2 x {heads} x {tokens} x 128 {dtype}", arguments=(x, cos, sin))


def _supports(query: Query) -> Support:
    reason = no_triton(query)
    if reason:
        return reason
    if query["x"].dtype == torch.float64:
        return "float64 is left to torch"
    if len(query["x"].shape) != tuning.DIMENSIONS:
        return f"x has not {tuning.DIMENSIONS} dimensions"
    if query["x"].shape[-1] > tuning.WIDEST:
        return f"vectors of more than {tuning.WIDEST} elements are left to torch"
    return True


rope = define(
    OpSpec(
        name="rope",
        summary="rotary position embedding; for the backward it keeps the tables only",
        reference=reference.rope,
        fake=lambda x, cos, sin, transposed=False: torch.empty_like(x),  # noqa: ARG005 - the schema's
        check=_check,
        setup_context=_setup_context,
        backward=_backward,
        samples=_samples,
        large=_large,
        tolerances=ALLOWED,
        traffic=lambda x, cos, sin, *_: 2 * x.nbytes + cos.nbytes + sin.nbytes,
        operations=per_element("x", 3),
    )
)
"""See `reference.rope`."""

TRITON = (
    Provider(
        op="rope",
        name="triton",
        run=tuning.rope,
        supports=_supports,
        priority=10,
        version=f"{triton_version()}/1",
        configs=tuning.configs,
    ),
)
"""Providers that the plugin `triton-kernels` adds to a run."""
