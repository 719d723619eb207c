"""Checks of the norms' arguments, sample arguments, and the comparison of results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.registry import Sample, relative_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ALLOWED = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Largest permitted relative error of a result, by the narrowest dtype of the tensors."""
_SHAPES = ((1, 7), (3, 17), (2, 5, 64), (9, 63), (0, 8), (4, 1000))


def check(name: str, x: torch.Tensor, vectors: dict[str, torch.Tensor | None]) -> None:
    """Raise ValueError unless each of `vectors` is `[d]` for `x` `[..., d]`, on its device."""
    if not x.dim() or not x.shape[-1] or not x.is_floating_point():
        msg = f"{name}: x is {x.dtype} {list(x.shape)}; should be floating [..., d], d at least 1"
        raise ValueError(msg)
    for which, vector in vectors.items():
        if vector is None:
            continue
        if vector.shape != x.shape[-1:] or not vector.is_floating_point():
            should = f"floating [{x.shape[-1]}] for x {list(x.shape)}"
            msg = f"{name}: {which} is {vector.dtype} {list(vector.shape)}; should be {should}"
            raise ValueError(msg)
        if vector.device != x.device:
            msg = f"{name}: {which} is on {vector.device}, x on {x.device}; put them on one"
            raise ValueError(msg)


def check_gradient(name: str, gradient: torch.Tensor, x: torch.Tensor) -> None:
    """Raise ValueError unless the gradient has the shape of `x`."""
    if gradient.shape != x.shape or gradient.device != x.device:
        got = f"{list(gradient.shape)} on {gradient.device}"
        msg = f"{name}: gradient is {got}; x is {list(x.shape)} on {x.device}"
        raise ValueError(msg)


def agree(
    expected: Sequence[tuple[str, torch.Tensor]], got: Sequence[tuple[str, torch.Tensor]]
) -> Iterator[str]:
    """Yield a message for each result whose relative error (of norms) is too large.

    The narrowest dtype decides for all results: torch rounds the means of 16-bit tensors.
    """
    allowed = max(ALLOWED[result.dtype] for _, result in got)
    for (name, right), (_, result) in zip(expected, got, strict=True):
        error = relative_error(right, result)
        if error > allowed:
            yield f"{name}: relative error {error:.2g} is more than {allowed:.2g}"


def numbers(
    shape: Sequence[int], seed: int, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Return normally distributed numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cpu").to(device=device, dtype=dtype)


def inputs(device: torch.device) -> Iterator[tuple[str, list[Any]]]:
    """Yield a name and x, weight, bias and gradient, of odd sizes, of every dtype, and strided."""
    half = (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16)
    for dtype, kind in ((torch.float32,) * 2, *half, (torch.bfloat16, torch.float32)):
        for shape in _SHAPES:
            tensors = _tensors(shape, device, dtype, kind)
            yield f"{list(shape)} {dtype}, weight {kind}", tensors
    x, weight, bias, gradient = _tensors((2, 5, 64), device, torch.float32, torch.float32)
    yield "strided", [x.transpose(0, 1), weight, bias, gradient.transpose(0, 1)]
    yield "every second column", [x[..., ::2], weight[::2], bias[::2], gradient[..., ::2]]
    tiny = _tensors((3, 17), device, torch.float32, torch.float32)
    yield "tiny", [tiny[0] * 1e-20, *tiny[1:]]
    for number in (torch.inf, torch.nan):
        x = x.clone()
        x[0, 1, 3] = number
        yield f"{number} in a row", [x, weight, bias, gradient]


def large_inputs(device: torch.device) -> Iterator[tuple[str, list[Any]]]:
    """Yield tensors of the sizes of language models; fewer tokens on a CPU."""
    tokens, dtype = (8192, torch.bfloat16) if device.type != "cpu" else (1024, torch.float32)
    for width in (1024, 4096):
        yield f"{tokens} x {width} {dtype}", _tensors((tokens, width), device, dtype, dtype)


def _tensors(
    shape: Sequence[int], device: torch.device, dtype: torch.dtype, kind: torch.dtype
) -> list[Any]:
    width = shape[-1:]
    return [
        numbers(shape, 1, device, dtype),
        numbers(width, 2, device, kind),
        numbers(width, 3, device, kind),
        numbers(shape, 4, device, dtype),
    ]


def sample(name: str, *arguments: Any) -> Sample:
    """Return a sample."""
    return Sample(name=name, arguments=arguments)


def moved(*tensors: torch.Tensor | None) -> int:
    """Return the bytes of some tensors together."""
    return sum(0 if tensor is None else tensor.nbytes for tensor in tensors)
