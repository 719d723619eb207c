"""Find out whether a model's own function computes rotary embeddings as the op does."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.rope.reference import rope

from .trials import TRIED, drawn, gradients, near, plainly, same, sized, strange

if TYPE_CHECKING:
    from collections.abc import Iterator


def rope_form(function: Any) -> bool | None:
    """Return whether a function rotates q and k as `rope` does; True if parts of vectors, too.

    None: it computes something else, or takes other arguments.
    """
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None
    if names != ["q", "k", "cos", "sin", "unsqueeze_dim"]:
        return None
    whole, parts = (
        all(_same_rope(function, dtype, *widths) for dtype in TRIED for widths in wanted)
        for wanted in (((8, 8), (64, 64)), ((8, 6), (64, 16)))
    )
    return parts if whole else None


def _same_rope(function: Any, dtype: torch.dtype, width: int, part: int) -> bool:
    with plainly() as random:
        return all(
            _same_turned(function, place, heads_at, given)
            and (dtype != torch.float32 or _same_turned_gradient(function, place, heads_at, given))
            for given in _turned(random, dtype, width, part)
            for place in (0, 1)
            for heads_at in (1, 2)
        )


def _turned(
    random: torch.Generator, dtype: torch.dtype, width: int, part: int
) -> Iterator[list[torch.Tensor]]:
    """Yield q and k `[batch, heads, tokens, width]`, and tables `[batch or 1, tokens, part]`."""
    for batch, tables, tokens in ((1, 1, 5), (2, 2, 70), (3, 1, 300), (2, 1, 1)):
        q, k = (
            strange(sized((batch, heads, tokens, width), random, (1.0, 100.0, 1e-5, 1e3)))
            for heads in (3, 1)
        )
        cos, sin = (drawn((tables, tokens, part), random) for _ in range(2))
        yield [each.to(dtype) for each in (q, k, cos, sin)]


def _call(
    function: Any, place: int, heads_at: int, given: list[torch.Tensor], x: torch.Tensor
) -> torch.Tensor:
    """Return what `function` makes of `x` in the place of q or k, with the heads in dimension 1."""
    both = [*given[:2]]
    both[place] = x
    q, k = (each.transpose(1, heads_at) for each in both)
    turned = function(q, k, *given[2:], unsqueeze_dim=heads_at)[place]
    return turned.transpose(1, heads_at)  # type: ignore[no-any-return]  # a stranger's


def _same_turned(function: Any, place: int, heads_at: int, given: list[torch.Tensor]) -> bool:
    x, (cos, sin) = given[place], (each.unsqueeze(1) for each in given[2:])
    return same(partial(_call, function, place, heads_at, given, x), rope(x, cos, sin))


def _same_turned_gradient(
    function: Any, place: int, heads_at: int, given: list[torch.Tensor]
) -> bool:
    x, (cos, sin) = given[place].nan_to_num(0.0, 0.0), (each.unsqueeze(1) for each in given[2:])
    # The gradient of the results, as `gradients` draws it.
    of_y = drawn(x.shape, torch.Generator(device="cpu").manual_seed(1))
    got = gradients(partial(_call, function, place, heads_at, given), (x.clone().requires_grad_(),))
    return near(got, [rope(of_y, cos, sin, transposed=True)])
