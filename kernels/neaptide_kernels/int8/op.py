"""Defines the ops `quantize_int8` and `dequantize_int8`, and registers the providers of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels import built
from neaptide_kernels.registry import KERNELS, OpSpec, Provider, Sample, define, per_element
from neaptide_kernels.support import no_triton, triton_version

from . import eager, on_host, on_inductor, reference, tuning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neaptide_kernels.registry import Query, Support

_SIZES = ((17, 1), (4097, 64), (3000, 300), (9000, 9000), (300, 3), (0, 64))
_LARGE = 1 << 24


def _check_quantize(x: torch.Tensor, group: int, *_: Any) -> None:
    if not x.is_floating_point():
        msg = f"quantize_int8 takes a floating tensor (got {x.dtype})"
        raise ValueError(msg)
    _check_group(group)


def _check_dequantize(
    codes: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None,
    group: int,
    dtype: torch.dtype,
) -> None:
    _check_group(group)
    groups = -(-codes.numel() // group)
    if codes.dtype != torch.int8 or not dtype.is_floating_point:
        msg = f"dequantize_int8 makes floating tensors of int8 (got {dtype} of {codes.dtype})"
        raise ValueError(msg)
    for name, tensor, kind in (("scale", scale, torch.float32), ("zero", zero, torch.int8)):
        if tensor is not None and (tensor.dtype != kind or tuple(tensor.shape) != (groups,)):
            msg = (
                f"{name} is {tensor.dtype} {list(tensor.shape)}; {codes.numel()} codes in groups "
                f"of {group} have {kind} [{groups}]"
            )
            raise ValueError(msg)


def _check_group(group: int) -> None:
    if group < 1:
        msg = f"a group has at least 1 element (got {group})"
        raise ValueError(msg)


def _fake_quantize(
    x: torch.Tensor, group: int, *_: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    groups = (x.numel() + group - 1) // group
    return (
        torch.empty(x.shape, dtype=torch.int8, device=x.device),
        torch.empty(groups, dtype=torch.float32, device=x.device),
        torch.empty(groups, dtype=torch.int8, device=x.device),
    )


def _fake_dequantize(
    codes: torch.Tensor,
    scale: torch.Tensor,  # noqa: ARG001 - the schema's
    zero: torch.Tensor | None,  # noqa: ARG001 - the schema's
    group: int,  # noqa: ARG001 - the schema's
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    return torch.empty(codes.shape, dtype=dtype, device=codes.device)


def values(elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return numbers of many magnitudes, among them a denormal number and several zeros."""
    generator = torch.Generator().manual_seed(elements)
    x = torch.randn(elements, generator=generator, device="cpu") * 10 ** torch.randn(
        elements, generator=generator, device="cpu"
    )
    x[elements // 2 : elements // 2 + elements // 8] = 0
    x[:1] = 1e-40
    return x.to(dtype=dtype, device=device)


def _quantize_samples(device: torch.device) -> Iterator[Sample]:
    for elements, group in _SIZES:
        for dtype in (torch.float32, torch.bfloat16):
            for affine in (False, True):
                for stochastic in (False, True):
                    x = values(elements, dtype, device)
                    kind = f"{'affine' if affine else 'symmetric'}{' stochastic' * stochastic}"
                    name = f"{elements} {dtype} in groups of {group}, {kind}"
                    yield Sample(name=name, arguments=(x, group, affine, stochastic, elements))
    broken = values(3000, torch.float32, device)
    broken[[100, 1000, 2000]] = torch.tensor([torch.nan, torch.inf, -torch.inf], device=device)
    for affine in (False, True):
        yield Sample(name=f"inf and NaN, affine {affine}", arguments=(broken, 128, affine))


def _dequantize_samples(device: torch.device) -> Iterator[Sample]:
    for elements, group in _SIZES:
        for affine in (False, True):
            codes, scale, zero = reference.quantize_int8(
                values(elements, torch.float32, device), group, affine
            )
            for dtype in (torch.float32, torch.bfloat16):
                name = f"{elements} in groups of {group} to {dtype}, affine {affine}"
                arguments = (codes, scale, zero if affine else None, group, dtype)
                yield Sample(name=name, arguments=arguments)


def _quantize_large(device: torch.device) -> Iterator[Sample]:
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(_LARGE, device=device).to(dtype)
        yield Sample(name=f"16M {dtype}, blocks of 256", arguments=(x, 256))
        yield Sample(name=f"16M {dtype}, one group", arguments=(x, _LARGE))


def _dequantize_large(device: torch.device) -> Iterator[Sample]:
    codes = torch.randint(-127, 128, (_LARGE,), dtype=torch.int8, device=device)
    scale = torch.rand(_LARGE // 256, device=device)
    for dtype in (torch.float32, torch.bfloat16):
        name = f"16M to {dtype}, blocks of 256"
        yield Sample(name=name, arguments=(codes, scale, None, 256, dtype))


def _supports(query: Query) -> Support:
    reason = no_triton(query)
    if reason:
        return reason
    for _, facts in query.tensors:
        if facts is not None and facts.dtype == torch.float64:
            return "float64 is left to the reference"
    return True


quantize_int8 = define(
    OpSpec(
        name="quantize_int8",
        summary="int8 codes by tensor, channel or block, symmetric or affine",
        reference=reference.quantize_int8,
        fake=_fake_quantize,
        check=_check_quantize,
        samples=_quantize_samples,
        large=_quantize_large,
        timed_by={"group"},
        traffic=lambda x, *_: x.numel() * (x.element_size() + 1),
        operations=per_element("x", 5),
    )
)
"""See `reference.quantize_int8`."""

dequantize_int8 = define(
    OpSpec(
        name="dequantize_int8",
        summary="the values of int8 codes",
        reference=reference.dequantize_int8,
        fake=_fake_dequantize,
        check=_check_dequantize,
        samples=_dequantize_samples,
        large=_dequantize_large,
        timed_by={"group"},
        traffic=lambda codes, _s, _z, _g, dtype: codes.numel() * (1 + dtype.itemsize),
        operations=per_element("codes", 2),
    )
)
"""See `reference.dequantize_int8`."""

TORCH = (
    Provider(
        op="quantize_int8",
        name="torch",
        run=eager.quantize,
        supports=eager.quantizes,
        priority=5,
    ),
    Provider(
        op="dequantize_int8",
        name="torch",
        run=eager.dequantize,
        supports=eager.dequantizes,
        priority=5,
    ),
)
HOST = (
    Provider(
        op="quantize_int8",
        name="numba",
        run=on_host.quantize,
        supports=on_host.quantizes,
        priority=6,
        fewest=on_host.fewest,
    ),
    Provider(
        op="dequantize_int8",
        name="numba",
        run=on_host.dequantize,
        supports=on_host.dequantizes,
        priority=6,
        fewest=on_host.fewest,
    ),
)
INDUCTOR = (
    built.provider("quantize_int8", on_inductor.quantize, on_inductor.recipe_of_quantize),
    built.provider("dequantize_int8", on_inductor.dequantize, on_inductor.recipe_of_dequantize),
)
for provider in (*TORCH, *HOST, *INDUCTOR):
    KERNELS.add(provider)

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
    for op, run in ((quantize_int8, tuning.quantize), (dequantize_int8, tuning.dequantize))
)
"""Providers that the plugin `triton-kernels` adds to a run."""
