"""The ops `gated_unit` and `gated_unit_backward`, and their providers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide.errors import suggest
from neaptide_kernels.registry import KERNELS, OpSpec, Provider, Sample, define, per_element
from neaptide_kernels.support import no_triton, triton_version

from . import eager, reference, tuning
from .reference import ACTIVATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neaptide_kernels.registry import Query, Support

ALLOWED = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Largest permitted relative error of a result, by its dtype."""


def _check(gate: torch.Tensor, up: torch.Tensor, activation: str) -> None:
    if activation not in ACTIVATIONS:
        msg = (
            f"gated_unit has no activation {activation!r}{suggest(activation, ACTIVATIONS)}; it "
            f"has {', '.join(ACTIVATIONS)}"
        )
        raise ValueError(msg)
    _check_alike(gate, "up", up)


def _check_backward(
    gradient: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str
) -> None:
    _check(gate, up, activation)
    _check_alike(gate, "gradient", gradient)


def _check_alike(gate: torch.Tensor, name: str, other: torch.Tensor) -> None:
    one, two = (f"{each.dtype} {list(each.shape)} on {each.device}" for each in (gate, other))
    if one != two or not gate.is_floating_point():
        msg = f"gated_unit: gate is {one}, {name} is {two}; should be floating and alike"
        raise ValueError(msg)


def _setup_context(ctx: Any, inputs: Sequence[Any], output: torch.Tensor) -> None:  # noqa: ARG001 - torch's
    gate, up, ctx.activation = inputs
    ctx.save_for_backward(gate, up)


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    wanted = ctx.needs_input_grad[:2]
    if not any(wanted):
        return (None, None, None)
    results = gated_unit_backward(gradient, *ctx.saved_tensors, ctx.activation)
    return (*(each if want else None for each, want in zip(results, wanted, strict=True)), None)


def _numbers(
    shape: Sequence[int], device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return gate, up and gradient, the same on every device."""
    generator = torch.Generator().manual_seed(sum(shape))
    drawn = torch.randn(3, *shape, generator=generator, device="cpu")
    gate, up, gradient = (drawn * 3).to(device=device, dtype=dtype)
    return gate.clone(), up.clone(), gradient.clone()


def _inputs(device: torch.device) -> Iterator[tuple[str, tuple[torch.Tensor, ...], str]]:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for activation in ACTIVATIONS:
            for shape in ((1, 1), (2, 3, 17)):
                yield f"{list(shape)} {dtype}", _numbers(shape, device, dtype), activation
        yield f"0 {dtype}", _numbers((0, 5), device, dtype), "silu"
    two = _numbers((5, 130), device, torch.float32)
    yield "halves of one", (two[0][:, :65], two[0][:, 65:], two[1][:, :65]), "silu"
    yield "transposed", tuple(each.T for each in two), "gelu"
    gate, up, gradient = (each.clone() for each in two)
    gate[0, :4] = torch.tensor([torch.inf, torch.nan, 100.0, -100.0])
    yield "inf, NaN and large", (gate, up, gradient), "gelu_tanh"


def _large_inputs(device: torch.device) -> Iterator[tuple[str, tuple[torch.Tensor, ...], str]]:
    tokens, dtype = (8192, torch.bfloat16) if device.type != "cpu" else (512, torch.float32)
    for activation in ("silu", "gelu_tanh"):
        yield f"{tokens} x 11008 {dtype}", _numbers((tokens, 11_008), device, dtype), activation


def _samples(device: torch.device) -> Iterator[Sample]:
    for name, (gate, up, _), activation in _inputs(device):
        yield Sample(name=f"{name}, {activation}", arguments=(gate, up, activation))


def _large(device: torch.device) -> Iterator[Sample]:
    for name, (gate, up, _), activation in _large_inputs(device):
        yield Sample(name=f"{name}, {activation}", arguments=(gate, up, activation))


def _backward_samples(device: torch.device) -> Iterator[Sample]:
    for name, (gate, up, gradient), activation in _inputs(device):
        yield Sample(name=f"{name}, {activation}", arguments=(gradient, gate, up, activation))


def _backward_large(device: torch.device) -> Iterator[Sample]:
    for name, (gate, up, gradient), activation in _large_inputs(device):
        yield Sample(name=f"{name}, {activation}", arguments=(gradient, gate, up, activation))


def _supports(query: Query) -> Support:
    reason = no_triton(query)
    if not reason and query["gate"].dtype == torch.float64:
        return "float64 is left to torch"
    return reason or True


gated_unit = define(
    OpSpec(
        name="gated_unit",
        summary="SwiGLU and GeGLU; for the backward it keeps its two inputs only",
        reference=reference.gated_unit,
        fake=lambda gate, up, activation: gate.new_empty(gate.shape),  # noqa: ARG005 - the schema's
        check=_check,
        setup_context=_setup_context,
        backward=_backward,
        samples=_samples,
        large=_large,
        tolerances=ALLOWED,
        traffic=lambda gate, *_: 3 * gate.nbytes,
        operations=per_element("gate", 5),
    )
)
"""See `reference.gated_unit`."""

gated_unit_backward = define(
    OpSpec(
        name="gated_unit_backward",
        summary="the gradients of SwiGLU and GeGLU",
        reference=reference.gated_unit_backward,
        fake=lambda _, gate, up, activation: (  # noqa: ARG005 - the schema's
            gate.new_empty(gate.shape),
            gate.new_empty(gate.shape),
        ),
        check=_check_backward,
        samples=_backward_samples,
        large=_backward_large,
        tolerances=ALLOWED,
        traffic=lambda gradient, *_: 5 * gradient.nbytes,
        operations=per_element("gate", 11),
    )
)
"""See `reference.gated_unit_backward`."""

TORCH = tuple(
    Provider(
        op=op.spec.name, name="torch", run=getattr(eager, op.spec.name), plain=True, priority=5
    )
    for op in (gated_unit, gated_unit_backward)
)
for _provider in TORCH:
    KERNELS.add(_provider)

TRITON = tuple(
    Provider(
        op=op.spec.name,
        name="triton",
        run=run,
        supports=_supports,
        priority=10,
        version=f"{triton_version()}/1",
        configs=tuning.configs,
    )
    for op, run in (
        (gated_unit, tuning.gated_unit),
        (gated_unit_backward, tuning.gated_unit_backward),
    )
)
"""Providers that the plugin `triton-kernels` adds to a run."""
