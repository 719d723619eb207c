"""The ops `rms_norm` and `rms_norm_backward`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.registry import OpSpec, define, per_element

from . import reference
from .checks import ALLOWED, agree, check, check_gradient, inputs, large_inputs, moved, sample
from .reference import precise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neaptide_kernels.registry import Sample

_FORMS = ((0.0, False), (1.0, False), (0.0, True))


def _result_dtype(
    x: torch.Tensor, weight: torch.Tensor | None, *, narrow_first: bool
) -> torch.dtype:
    if weight is None or not narrow_first:
        return x.dtype
    return torch.promote_types(x.dtype, weight.dtype)


def _check_form(weight: torch.Tensor | None, offset: float, *, narrow_first: bool) -> None:
    if offset and (narrow_first or weight is None):
        msg = f"rms_norm: with {offset=}, a weight is needed and narrow_first must be False"
        raise ValueError(msg)


def _check(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    _eps: float,
    offset: float,
    narrow_first: bool,
) -> None:
    check("rms_norm", x, {"weight": weight})
    _check_form(weight, offset, narrow_first=narrow_first)


def _check_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    rstd: torch.Tensor,
    offset: float,
    narrow_first: bool,
    *_: Any,
) -> None:
    check("rms_norm_backward", x, {"weight": weight})
    check_gradient("rms_norm_backward", gradient, x)
    check_gradient("rms_norm_backward, rstd", rstd, x[..., 0])
    _check_form(weight, offset, narrow_first=narrow_first)


def _fake(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,  # noqa: ARG001 - the schema's
    offset: float = 0.0,  # noqa: ARG001 - the schema's
    narrow_first: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = _result_dtype(x, weight, narrow_first=narrow_first)
    return x.new_empty(x.shape, dtype=dtype), x.new_empty(x.shape[:-1], dtype=precise(x.dtype))


def _fake_backward(
    gradient: torch.Tensor,  # noqa: ARG001 - the schema's
    x: torch.Tensor,
    weight: torch.Tensor | None,
    rstd: torch.Tensor,  # noqa: ARG001 - the schema's
    offset: float = 0.0,  # noqa: ARG001 - the schema's
    narrow_first: bool = False,  # noqa: ARG001 - the schema's
    for_weight: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    has = weight is not None and for_weight
    return x.new_empty(x.shape), weight.new_empty(weight.shape) if has else x.new_empty(0)  # type: ignore[union-attr]  # has


def _setup_context(ctx: Any, inputs: Sequence[Any], output: Sequence[torch.Tensor]) -> None:
    x, weight, _, *form = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.form = form
    ctx.save_for_backward(x, weight, output[1])


def _backward(ctx: Any, gradient: torch.Tensor | None, _: Any) -> tuple[torch.Tensor | None, ...]:
    for_x, for_weight, *_ = ctx.needs_input_grad
    if gradient is None or not (for_x or for_weight):
        return (None,) * (3 + len(ctx.form))
    x, weight, rstd = ctx.saved_tensors
    of_x, of_weight = rms_norm_backward(gradient, x, weight, rstd, *ctx.form, for_weight)
    rest = (None,) * (1 + len(ctx.form))
    return (of_x if for_x else None, of_weight if for_weight else None, *rest)


def _samples(
    made: Callable[[torch.device], Iterator[tuple[str, list[Any]]]],
) -> Callable[[torch.device], Iterator[Sample]]:
    def samples(device: torch.device) -> Iterator[Sample]:
        for place, (name, (x, weight, _, _)) in enumerate(made(device)):
            form = _FORMS[place % len(_FORMS)]
            if form[1] and x.dtype != weight.dtype:
                continue  # a float32 result with an error of bfloat16
            yield sample(f"{name}, offset {form[0]}, {form[1]}", x, weight, 1e-6, *form)
        yield sample(f"{name}, no weight", x, None, 1e-6)

    return samples


def _backward_samples(
    made: Callable[[torch.device], Iterator[tuple[str, list[Any]]]],
) -> Callable[[torch.device], Iterator[Sample]]:
    def samples(device: torch.device) -> Iterator[Sample]:
        for place, (name, (x, weight, _, gradient)) in enumerate(made(device)):
            form = _FORMS[place % len(_FORMS)]
            y, rstd = reference.rms_norm(x, weight, 1e-6, *form)
            given = (gradient.to(y.dtype), x, weight, rstd, *form)
            yield sample(f"{name}, offset {form[0]}, {form[1]}", *given)
        yield sample(f"{name}, only x", *given, False)
        yield sample(f"{name}, no weight", gradient, x, None, rstd)

    return samples


rms_norm = define(
    OpSpec(
        name="rms_norm",
        summary="RMSNorm; for the backward it keeps its input and a number a row",
        reference=reference.rms_norm,
        fake=_fake,
        check=_check,
        setup_context=_setup_context,
        backward=_backward,
        samples=_samples(inputs),
        large=_samples(large_inputs),
        tolerances=ALLOWED,
        agree=agree,
        traffic=lambda x, weight, *_: 2 * x.nbytes + moved(weight),
        operations=per_element("x", 6),
    )
)
"""See `reference.rms_norm`."""

rms_norm_backward = define(
    OpSpec(
        name="rms_norm_backward",
        summary="the gradients of RMSNorm",
        reference=reference.rms_norm_backward,
        fake=_fake_backward,
        check=_check_backward,
        samples=_backward_samples(inputs),
        large=_backward_samples(large_inputs),
        tolerances=ALLOWED,
        agree=agree,
        traffic=lambda gradient, x, weight, *_: moved(gradient, x, x, weight, weight),
        operations=per_element("x", 12),
    )
)
"""See `reference.rms_norm_backward`."""
