"""Run `apply_delta` and `apply_int8_delta` as torch's compiler builds them of the reference."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from neaptide_kernels import built
from neaptide_kernels.int8.reference import decoded, dequantize_int8
from neaptide_kernels.registry import takes

from . import reference
from .reference import FloatDeltas, Int8Deltas, add, by_weight

if TYPE_CHECKING:
    from neaptide_kernels.registry import Query

_DTYPES = frozenset({torch.float32, torch.bfloat16})
_EXAMPLE = 1 << 22
_GROUP = 256


def recipe_of(query: Query) -> built.Recipe | str:
    """Return what a call of either op needs, or the reason why it is not supported."""
    coded = query.op == "apply_int8_delta"
    params, deltas = query["params"], query["codes" if coded else "deltas"]
    if query["stochastic"]:
        return "it rounds to the nearest"
    if params.count != deltas.count:
        return "it takes one delta for each weight"
    floating = {params.dtype} if coded else {params.dtype, deltas.dtype}
    if not floating <= _DTYPES:
        return "it takes float32 and bfloat16, one dtype for a list"
    return adding_codes(params.dtype) if coded else adding(params.dtype, deltas.dtype)


@cache
def adding(weight: torch.dtype, delta: torch.dtype) -> built.Recipe:
    """Return how a delta is added to a weight, in place."""

    def added(target: torch.Tensor, moved: torch.Tensor, scale: torch.Tensor) -> tuple[()]:
        reference.apply_delta([target], [moved], scale)
        return ()

    def example() -> tuple[torch.Tensor, ...]:
        numbers = torch.randn(_EXAMPLE, device="cpu")
        return numbers.to(weight), numbers.to(delta, copy=True), numbers[:1].clone().view(())

    return built.Recipe(
        name=f"apply_delta-{built.short(delta)}-to-{built.short(weight)}",
        function=added,
        example=example,
        sizes=({0: "elements"}, {0: "elements"}, {}),
    )


@cache
def adding_codes(weight: torch.dtype) -> built.Recipe:
    """Return how a delta of codes is added to a weight, in place."""

    def added(
        target: torch.Tensor, codes: torch.Tensor, sizes: torch.Tensor, scale: torch.Tensor
    ) -> tuple[()]:
        reference.apply_delta([target], [decoded(codes, sizes, None, torch.float32)], scale)
        return ()

    def example() -> tuple[torch.Tensor, ...]:
        numbers = torch.randn(_EXAMPLE // _GROUP, _GROUP, device="cpu")
        codes, sizes = numbers.to(torch.int8), numbers[:, 0].clone()
        return numbers.to(weight), codes, sizes, sizes[:1].clone().view(())

    rows = {0: "groups", 1: "group"}
    return built.Recipe(
        name=f"apply_int8_delta-to-{built.short(weight)}",
        function=added,
        example=example,
        sizes=(rows, rows, {0: "groups"}, {}),
    )


@takes(FloatDeltas)
def apply_delta(call: FloatDeltas) -> None:
    """Run `apply_delta`; weights that are not contiguous are left to the reference."""
    step = built.function(adding(call.params[0].dtype, call.deltas[0].dtype))
    pairs = by_weight(call.params, call.deltas, call.scale.float())
    for place, (weight, [(delta, scale)]) in enumerate(pairs):
        if weight.numel() < built.LEAST or not weight.is_contiguous():
            add(weight, place, [(delta, scale)], None)
        else:
            step(weight.detach().view(-1), delta.detach().reshape(-1), scale)


@takes(Int8Deltas)
def apply_int8_delta(call: Int8Deltas) -> None:
    """Run `apply_int8_delta`; weights of one group or a part of one are left to the reference."""
    step, group = built.function(adding_codes(call.params[0].dtype)), call.group
    pairs = by_weight(call.params, call.codes, call.scale.float())
    for place, ((weight, [(codes, scale)]), sizes) in enumerate(
        zip(pairs, call.code_scales, strict=True)
    ):
        groups, rest = divmod(weight.numel(), group)
        if rest or min(group, groups) < built.LEAST or not weight.is_contiguous():
            delta = dequantize_int8(codes, sizes, None, group)
            add(weight, place, [(delta, scale)], None)
        else:
            step(weight.detach().view(-1, group), codes.reshape(-1, group), sizes, scale)
