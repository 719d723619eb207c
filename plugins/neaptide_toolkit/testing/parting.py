"""Where two runs part: one comparison for the contract kit, the laws and `neaptide verify`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
import torch

if TYPE_CHECKING:
    from collections.abc import Mapping


@attrs.frozen
class Parting:
    """A value in which two runs differ."""

    name: str
    """Such as `weights/blocks.0.up.weight`; each caller has its own names."""
    what: str
    """The difference, in words."""
    gap: float | None = None
    """Largest difference / largest magnitude of the expected values; None if it is not known."""
    share: float | None = None
    """Share of the elements that differ."""

    def __str__(self) -> str:
        if self.gap is None:
            return f"{self.name} {self.what}"
        share = "" if self.share is None else f" in {self.share:.3g} of the elements"
        return f"{self.name} {self.what}, by {self.gap:.2e} of its largest value{share}"


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors, on any devices, hold the same bytes, NaN and signed zero too."""
    if one.dtype != other.dtype or one.shape != other.shape or one.layout != other.layout:
        return False
    if one.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    return torch.equal(*(_bytes(each) for each in (one, other)))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def partings(
    expected: Mapping[str, Any], found: Mapping[str, Any], *, rtol: float = 0.0
) -> list[Parting]:
    """Return the values in which two runs differ, in the order of `expected`.

    Args:
        expected: tensors or other values by name. Tensors are compared bit by bit, other values
            with `==`; two NaN are equal.
        found: the values of the other run.
        rtol: a floating tensor may differ by this share of the largest expected magnitude.
    """
    every = [_parting(name, value, found, rtol) for name, value in expected.items()]
    new = [Parting(name, "is new") for name in found if name not in expected]
    return [one for one in every if one is not None] + new


def _parting(name: str, expected: Any, others: Mapping[str, Any], rtol: float) -> Parting | None:
    if name not in others:
        return Parting(name, "is missing")
    found = others[name]
    if isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor):
        return _of_tensors(name, expected, found, rtol)
    if type(expected) is float and type(found) is float:
        if expected == found or (math.isnan(expected) and math.isnan(found)):
            return None
        gap = abs(found - expected) / abs(expected) if expected else math.inf
        if gap <= rtol:
            return None
        return Parting(name, f"is {found!r} instead of {expected!r}", gap)
    if expected == found:
        return None
    return Parting(name, "has other values")


def _of_tensors(
    name: str, expected: torch.Tensor, found: torch.Tensor, rtol: float
) -> Parting | None:
    if same_bits(expected, found):
        return None
    for kind in ("dtype", "shape", "layout"):
        one, other = getattr(expected, kind), getattr(found, kind)
        if one != other:
            one, other = (tuple(each) if kind == "shape" else each for each in (one, other))
            return Parting(name, f"has {kind} {other} instead of {one}")
    gap, share = gap_of(expected, found)
    if expected.is_floating_point() and gap <= rtol:
        return None
    return Parting(name, "has other values", gap, share)


def gap_of(expected: torch.Tensor, found: torch.Tensor) -> tuple[float, float]:
    """Return the largest difference of two tensors of one shape, and the share that differs.

    The difference is relative to the largest magnitude of `expected`; NaN if one has NaN.
    """
    one, other = (_wide(each) for each in (expected, found))
    if not one.numel():
        return 0.0, 0.0
    difference = float((one - other).abs().max())
    largest = float(one.abs().max())
    share = float((one != other).double().mean())
    return (
        difference / largest if largest else math.inf * difference if difference else 0.0
    ), share


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor.detach().cpu()
    dense = dense if dense.layout is torch.strided else dense.to_dense()
    return torch.view_as_real(dense).double() if dense.is_complex() else dense.double()
