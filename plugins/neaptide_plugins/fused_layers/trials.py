"""The numbers on which a layer is tried, and how its results and gradients are compared.

They are of many sizes, with zeros, infinity and NaN, because a layer may clamp or replace numbers.
"""

from __future__ import annotations

import copy
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Call = Callable[[torch.Tensor], torch.Tensor]

TRIED = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes in which a layer is tried."""
_SHAPES = ((3, 4), (1, 5), (1, 70), (7,), (1, 1))
_SIZES = (1.0, 100.0, 1e-5, 1e3, 1e-3, 1e4, 0.03)
_MODEST = (1.0, 100.0, 1e-2, 1e-3)
"""Sizes of numbers for gradients, which do not overflow."""
_STRANGE = 7
"""Inputs of at least so many rows have infinity, NaN and zeros, too."""
_NEAR = 1e-4
"""Largest difference of two gradients in float32, relative to the largest number of their row."""


@contextmanager
def plainly() -> Iterator[torch.Generator]:
    """Compute on the CPU, without autocast and gradients, and draw no number of the run."""
    with (
        torch.inference_mode(mode=False),
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
        torch.device("cpu"),
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # of torch, about mixed dtypes
        yield torch.Generator(device="cpu").manual_seed(0)


def drawn(shape: Sequence[int], random: torch.Generator) -> torch.Tensor:
    """Return float32 numbers, normally distributed."""
    return torch.randn(*shape, generator=random, dtype=torch.float32)


def sized(shape: Sequence[int], random: torch.Generator, sizes: Sequence[float]) -> torch.Tensor:
    """Return float32 numbers whose rows are of `sizes` in turn."""
    x = drawn(shape, random)
    rows = x.view(-1, shape[-1])
    rows *= torch.tensor(sizes).repeat(len(rows) // len(sizes) + 1)[: len(rows), None]
    return x


def strange(x: torch.Tensor) -> torch.Tensor:
    """Return `x` with large single numbers, and in its last rows zeros, infinity and NaN."""
    rows = x.view(-1, x.shape[-1])
    rows[::5, 0] *= 1e3
    if len(rows) >= _STRANGE:
        rows[-3] = 0.0
        rows[-2, 0], rows[-1, -1] = torch.inf, torch.nan
    return x


def inputs(
    width: int, dtype: torch.dtype, random: torch.Generator, near: float = 1.0
) -> Iterator[torch.Tensor]:
    """Yield inputs `[..., width]` of several shapes and sizes; `near` is one more size."""
    sizes = (*_SIZES, near)
    for shape in _SHAPES:
        yield strange(sized((*shape, width), random, sizes)).to(dtype)
    for size in sizes:
        yield sized((2, 3, width), random, (size,)).to(dtype)


def modest(width: int, random: torch.Generator) -> Iterator[torch.Tensor]:
    """Yield inputs `[..., width]` in float32 for the comparison of gradients."""
    for shape in _SHAPES[:3]:
        yield sized((*shape, width), random, _MODEST)


def copied(
    module: nn.Module,
    parameters: dict[str, nn.Parameter] | None = None,
    modules: dict[str, nn.Module] | None = None,
) -> nn.Module:
    """Return a module of the same class and attributes, with other parameters or children."""
    probe = copy.copy(module)
    if parameters is not None:
        probe.__dict__["_parameters"] = parameters
    if modules is not None:
        probe.__dict__["_modules"] = modules
    return probe


def same_layer(probe: nn.Module, x: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether a copy computes `expected` while it is trained, and while it is not."""
    return all(same(lambda: type(probe).forward(probe, x), expected) for _ in _modes(probe))


def same_layer_gradients(
    probe: nn.Module, form: Call, x: torch.Tensor, weights: Sequence[torch.Tensor]
) -> bool:
    """Return whether the gradients of a copy are those of `form`, up to rounding.

    Args:
        probe: the copy.
        form: computes the same by torch's operations.
        x: the input.
        weights: the further tensors whose gradients are compared.
    """
    leaves = (x.clone().requires_grad_(), *weights)
    right = gradients(form, leaves)
    return right is not None and all(
        near(gradients(lambda x: type(probe).forward(probe, x), leaves), right)
        for _ in _modes(probe)
    )


def _modes(probe: nn.Module) -> Iterator[bool]:
    """Bring a copy, whose children are copies, into both modes."""
    for training in (True, False):
        for each in (probe, *probe.children()):
            each.__dict__["training"] = training
        yield training


def gradients(call: Call, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor | None] | None:
    """Return the gradients of `leaves` of what `call` makes of the first; None if it raises."""
    try:
        with torch.enable_grad():
            y = call(leaves[0])
            of_y = drawn(y.shape, torch.Generator(device="cpu").manual_seed(1))
            return list(torch.autograd.grad(y, leaves, of_y, allow_unused=True))
    except Exception:  # noqa: BLE001 - a stranger's code may raise anything; it is left as it is
        return None


def near(got: Sequence[torch.Tensor | None] | None, right: Sequence[torch.Tensor | None]) -> bool:
    """Return whether all gradients exist and are alike, up to rounding."""
    return got is not None and all(
        one is not None
        and two is not None
        and one.shape == two.shape
        and bool(((one - two).abs() <= _NEAR * two.abs().amax(-1, keepdim=True)).all())
        for one, two in zip(got, right, strict=True)
    )


def same(call: Callable[[], torch.Tensor], expected: torch.Tensor) -> bool:
    """Return whether `call` returns the bits of `expected`; any NaN is like any other."""
    try:
        got = call()
    except Exception:  # noqa: BLE001 - a stranger's code may raise anything; it is left as it is
        return False
    if not isinstance(got, torch.Tensor):
        return False
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return False
    return torch.equal(got, expected) or bool(
        ((got == expected) | (got.isnan() & expected.isnan())).all()
    )
