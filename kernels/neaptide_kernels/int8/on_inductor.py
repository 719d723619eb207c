"""Run `quantize_int8` and `dequantize_int8` as torch's compiler builds them of the reference."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

import torch

from neaptide_kernels import built

from . import reference

if TYPE_CHECKING:
    from neaptide_kernels.registry import Query

_DTYPES = frozenset({torch.float32, torch.bfloat16})
_EXAMPLE = 1 << 24
_GROUP = 256


def recipe_of_quantize(query: Query) -> built.Recipe | str:
    """Return what a call of `quantize_int8` needs, or the reason why it is not supported."""
    x = query["x"]
    if x.dtype not in _DTYPES:
        return f"it takes float32 and bfloat16 (x is {x.dtype})"
    if query["stochastic"]:
        return "it rounds to the nearest"
    single = query["group"] >= x.elements
    return _refusal(query, "x") or quantizing(x.dtype, affine=query["affine"], single=single)


def recipe_of_dequantize(query: Query) -> built.Recipe | str:
    """Return what a call of `dequantize_int8` needs, or the reason why it is not supported."""
    dtype, affine = query["dtype"], query["zero"] is not None
    if dtype not in _DTYPES:
        return f"it makes float32 and bfloat16 (dtype is {dtype})"
    single = query["group"] >= query["codes"].elements
    return _refusal(query, "codes") or dequantizing(dtype, affine=affine, single=single)


def _refusal(query: Query, name: str) -> str:
    elements, group = query[name].elements, query["group"]
    if min(elements, group) < built.LEAST or (group < elements and elements % group):
        return f"it takes whole groups of at least {built.LEAST} elements"
    return ""


@cache
def quantizing(dtype: torch.dtype, *, affine: bool, single: bool) -> built.Recipe:
    """Return how groups are quantized: several, or a single one."""
    kind = "affine" if affine else "symmetric"
    return built.Recipe(
        name=f"quantize_int8-{built.short(dtype)}-{kind}-{_form(single=single)}",
        function=partial(reference.encoded, affine=affine, seed=None),
        example=lambda: (torch.randn(_rows(single=single), device="cpu").to(dtype),),
        sizes=(_sizes(single=single),),
    )


@cache
def dequantizing(dtype: torch.dtype, *, affine: bool, single: bool) -> built.Recipe:
    """Return how codes of several groups, or of a single one, are decoded."""

    def example() -> tuple[torch.Tensor, ...]:
        codes = torch.randint(-127, 128, _rows(single=single), dtype=torch.int8, device="cpu")
        zero = codes[:, 0].clone()
        return (codes, zero.float(), zero) if affine else (codes, zero.float())

    def decoded(
        codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None = None
    ) -> torch.Tensor:
        return reference.decoded(codes, scale, zero, dtype)

    groups = {} if single else {0: "groups"}
    kind = "affine" if affine else "symmetric"
    return built.Recipe(
        name=f"dequantize_int8-{built.short(dtype)}-{kind}-{_form(single=single)}",
        function=decoded,
        example=example,
        sizes=(_sizes(single=single), *[groups] * (2 if affine else 1)),
    )


def quantize(
    x: torch.Tensor, group: int, affine: bool, stochastic: bool, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run `quantize_int8`."""
    del stochastic, seed
    rows = x.detach().reshape(-1, min(group, x.numel()))
    recipe = quantizing(x.dtype, affine=affine, single=len(rows) == 1)
    codes, scale, zero = built.function(recipe)(rows)
    return codes.view(x.shape), scale, zero


def dequantize(
    codes: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None,
    group: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Run `dequantize_int8`."""
    rows = codes.reshape(-1, min(group, codes.numel()))
    recipe = dequantizing(dtype, affine=zero is not None, single=len(rows) == 1)
    given = (scale,) if zero is None else (scale, zero)
    (values,) = built.function(recipe)(rows, *given)
    return values.view(codes.shape)


def _rows(*, single: bool) -> tuple[int, int]:
    return (1, _EXAMPLE) if single else (_EXAMPLE // _GROUP, _GROUP)


def _sizes(*, single: bool) -> dict[int, str]:
    return {1: "group"} if single else {0: "groups", 1: "group"}


def _form(*, single: bool) -> str:
    return "one" if single else "groups"
