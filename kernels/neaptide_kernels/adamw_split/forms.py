"""How torch rounds AdamW on this CPU: the roots that it takes, and the operations that it fuses.

Steps of torch are compared with their arithmetic, written out in float64. Three things differ
between CPUs and builds of torch. The roots are rounded correctly, or they are those of Intel's
library, of which some are not. Where a CPU has no FMA, nothing is fused. The fused AdamW does the
elements that are left after whole vectors in another way.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import attrs
import torch

_LIBRARY = "libtorch_cpu.so"
_MODE = 0x140102  # VML_HA | VML_FTZDAZ_OFF | VML_ERRMODE_IGNORE, as torch has it
_ELEMENTS = 4096
_VECTORS = (1, 4, 8, 16)
"""Elements of a vector that are tried; with 1 nothing is left."""
_BETA2, _STEP, _LR = 0.999, 7.0, 1e-2


@attrs.frozen
class Form:
    """Which of the known ways of rounding torch uses."""

    root: int = 0
    """Address of `void root(n, source, target, mode)`; 0: roots are rounded correctly."""
    mode: int = 0
    vector: int = 1
    """The last `n % vector` elements of a tensor are those that are left."""


@cache
def form(*, fused: bool) -> Form | None:
    """Return how `torch.optim.AdamW` on a CPU rounds, fused or not; None if it is unknown how."""
    with torch.no_grad():
        return _of_fused() if fused else _of_eager()


def lerps_fused(dtype: torch.dtype) -> bool:
    """Return whether `torch.lerp` on a CPU is one fused operation in float32, then rounded."""
    _, gradient, mean, _ = (one.to(dtype) for one in _numbers(_ELEMENTS + max(_VECTORS) - 1))
    return all(
        torch.equal(
            _lerp(mean.float(), gradient.float(), share).to(dtype), mean.lerp(gradient, share)
        )
        for share in (0.1, 0.7)
    )


def _of_eager() -> Form | None:
    if not lerps_fused(torch.float32):
        return None
    weight, gradient, mean, square = _numbers(_ELEMENTS + max(_VECTORS) - 1)
    updated = (square * _BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
    moved = weight.clone().addcdiv_(mean, square, value=-_LR)
    if not torch.equal(_squared(square, gradient), updated) or not torch.equal(
        weight + (mean * -_LR) / square, moved
    ):
        return None
    roots = square.sqrt()
    if torch.equal(roots, _root(square)):
        return Form()
    address = _address_of_root()
    if address is None:
        return None
    taken = torch.empty_like(square)
    _FUNCTION(address)(len(square), square.data_ptr(), taken.data_ptr(), _MODE)
    return Form(address, _MODE) if torch.equal(roots, taken) else None


def _of_fused() -> Form | None:
    elements = _ELEMENTS + max(_VECTORS) - 1
    weight, gradient, mean, square = _numbers(elements)
    moved, averaged, updated = (tensor.clone() for tensor in (weight, mean, square))
    torch._fused_adamw_(
        [moved], [gradient], [averaged], [updated], [], [_f32(_STEP)], lr=_LR, beta1=0.9,
        beta2=_BETA2, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
    )  # fmt: skip
    correction = (1 - _BETA2**_STEP) ** 0.5
    step = (averaged * -(_LR / (1 - 0.9**_STEP))) / (_root(updated) / correction + 1e-8)
    if not torch.equal(_lerp(mean, gradient, 1 - 0.9), averaged) or not torch.equal(
        weight + step, moved
    ):
        return None
    for vector in _VECTORS:
        whole = elements - elements % vector
        left = _fused(square, _f32(_BETA2), (_f32(1 - _BETA2) * gradient) * gradient)
        expected = torch.cat([_squared(square, gradient)[:whole], left[whole:]])
        if torch.equal(expected, updated):
            return Form(vector=vector)
    return None


def _numbers(elements: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    weight, gradient, mean, square = torch.randn(4, elements, generator=draw, device="cpu")
    return [weight, gradient, mean * 0.1, square.square() * 0.01]


def _f32(number: float) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.float32, device="cpu")


def _fused(factor: torch.Tensor, other: torch.Tensor, term: torch.Tensor) -> torch.Tensor:
    return (factor.double() * other.double() + term.double()).float()


def _lerp(start: torch.Tensor, end: torch.Tensor, share: float) -> torch.Tensor:
    weight = _f32(share)
    if float(weight) < 0.5:  # noqa: PLR2004 - the middle
        return _fused(weight, end - start, start)
    return _fused(weight - 1, end - start, end)


def _squared(square: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return _fused(_f32(1 - _BETA2) * gradient, gradient, square * _f32(_BETA2))


def _root(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.double().sqrt().float()


_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def _address_of_root() -> int | None:
    """Return the address of the roots of Intel's library in torch, if torch shows it."""
    path = Path(torch.__file__).parent / "lib" / _LIBRARY
    if not path.exists():
        return None
    function = getattr(ctypes.CDLL(str(path)), "vmsSqrt", None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value
