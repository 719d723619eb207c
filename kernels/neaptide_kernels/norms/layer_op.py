"""The ops `layer_norm` and `layer_norm_backward`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neaptide_kernels.registry import OpSpec, define, per_element

from . import reference
from .checks import ALLOWED, agree, check, check_gradient, inputs, large_inputs, moved, sample
from .reference import precise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from neaptide_kernels.registry import Sample


def _check(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, _eps: float
) -> None:
    check("layer_norm", x, {"weight": weight, "bias": bias})
    if bias is not None and (weight is None or bias.dtype != weight.dtype):
        kind = "there is no weight" if weight is None else f"the weight is {weight.dtype}"
        msg = f"layer_norm: bias is {bias.dtype}, {kind}; give a weight of the bias's dtype"
        raise ValueError(msg)


def _check_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    *_: Any,
) -> None:
    check("layer_norm_backward", x, {"weight": weight})
    check_gradient("layer_norm_backward", gradient, x)
    for name, each in (("mean", mean), ("rstd", rstd)):
        check_gradient(f"layer_norm_backward, {name}", each, x[..., 0])


def _fake(
    x: torch.Tensor,
    weight: torch.Tensor | None,  # noqa: ARG001 - the schema's
    bias: torch.Tensor | None,  # noqa: ARG001 - the schema's
    eps: float,  # noqa: ARG001 - the schema's
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    kind = precise(x.dtype)
    row = x.shape[:-1]
    return x.new_empty(x.shape), x.new_empty(row, dtype=kind), x.new_empty(row, dtype=kind)


def _fake_backward(
    gradient: torch.Tensor,  # noqa: ARG001 - the schema's
    x: torch.Tensor,
    weight: torch.Tensor | None,
    mean: torch.Tensor,  # noqa: ARG001 - the schema's
    rstd: torch.Tensor,  # noqa: ARG001 - the schema's
    for_weight: bool = True,
    for_bias: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    of_weight, of_bias = (
        weight.new_empty(weight.shape) if weight is not None and wanted else x.new_empty(0)
        for wanted in (for_weight, for_bias)
    )
    return x.new_empty(x.shape), of_weight, of_bias


def _setup_context(ctx: Any, inputs: Sequence[Any], output: Sequence[torch.Tensor]) -> None:
    x, weight, *_ = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(x, weight, *output[1:])


def _backward(ctx: Any, gradient: torch.Tensor | None, *_: Any) -> tuple[torch.Tensor | None, ...]:
    wanted = ctx.needs_input_grad[:3]
    if gradient is None or not any(wanted):
        return (None,) * 4
    results = layer_norm_backward(gradient, *ctx.saved_tensors, *wanted[1:])
    return (*(each if want else None for each, want in zip(results, wanted, strict=True)), None)


def _samples(
    made: Callable[[torch.device], Iterator[tuple[str, list[Any]]]],
) -> Callable[[torch.device], Iterator[Sample]]:
    def samples(device: torch.device) -> Iterator[Sample]:
        for name, (x, weight, bias, _) in made(device):
            if name.startswith("inf"):
                continue  # torch's mean of such a row is NaN on a CPU
            yield sample(name, x, weight, bias, 1e-5)
        yield sample(f"{name}, no bias", x, weight, None, 1e-5)
        yield sample(f"{name}, no weight", x, None, None, 1e-5)

    return samples


def _backward_samples(
    made: Callable[[torch.device], Iterator[tuple[str, list[Any]]]],
) -> Callable[[torch.device], Iterator[Sample]]:
    def samples(device: torch.device) -> Iterator[Sample]:
        for name, (x, weight, bias, gradient) in made(device):
            if name.startswith("inf"):
                continue
            _, mean, rstd = reference.layer_norm(x, weight, bias, 1e-5)
            yield sample(name, gradient, x, weight, mean, rstd)
        for wanted in ((False, False), (True, False), (False, True)):
            yield sample(f"{name}, {wanted}", gradient, x, weight, mean, rstd, *wanted)
        yield sample(f"{name}, no weight", gradient, x, None, mean, rstd)

    return samples


layer_norm = define(
    OpSpec(
        name="layer_norm",
        summary="LayerNorm; for the backward it keeps its input and two numbers a row",
        reference=reference.layer_norm,
        fake=_fake,
        check=_check,
        setup_context=_setup_context,
        backward=_backward,
        samples=_samples(inputs),
        large=_samples(large_inputs),
        tolerances=ALLOWED,
        agree=agree,
        traffic=lambda x, weight, bias, _: moved(x, x, weight, bias),
        operations=per_element("x", 8),
    )
)
"""See `reference.layer_norm`."""

layer_norm_backward = define(
    OpSpec(
        name="layer_norm_backward",
        summary="the gradients of LayerNorm",
        reference=reference.layer_norm_backward,
        fake=_fake_backward,
        check=_check_backward,
        samples=_backward_samples(inputs),
        large=_backward_samples(large_inputs),
        tolerances=ALLOWED,
        agree=agree,
        traffic=lambda gradient, x, weight, *_: moved(gradient, x, x, weight, weight, weight),
        operations=per_element("x", 14),
    )
)
"""See `reference.layer_norm_backward`."""
