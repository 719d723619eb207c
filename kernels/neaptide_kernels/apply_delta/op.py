"""Defines the ops `apply_delta` and `apply_int8_delta`, and registers the providers of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels import built
from neaptide_kernels.int8.reference import quantize_int8
from neaptide_kernels.registry import KERNELS, OpSpec, Provider, Sample, define, per_element, takes
from neaptide_kernels.support import no_triton, triton_version

from . import on_host, on_inductor, reference, tuning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neaptide_kernels.registry import Query, Support

_SHAPES = ((1,), (17,), (0,), (63, 65), (2048,), ())
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_BROKEN = (torch.nan, torch.inf, -torch.inf, 1e-40, -1e-40, 1e-7, 65_519.0, 3.4e38, -3.4e38, -0.0)
_LARGE = 1 << 22
_LONGEST_GROUP = 1 << 30


@takes(reference.FloatDeltas)
def _check(call: reference.FloatDeltas) -> None:
    lists = {"params": call.params, "deltas": call.deltas, "scale": [call.scale]}
    for name, tensors in lists.items():
        for place, tensor in enumerate(tensors):
            if not tensor.is_floating_point():
                msg = f"{name}[{place}] is {tensor.dtype}, not a floating dtype"
                raise ValueError(msg)
    _check_shapes("deltas", call.params, call.deltas, call.scale)


@takes(reference.Int8Deltas)
def _check_int8(call: reference.Int8Deltas) -> None:
    params, codes, code_scales, scale, group, *_ = call
    if group < 1:
        msg = f"group must be at least 1 element (got {group})"
        raise ValueError(msg)
    _check(params, (), scale[:0] if scale.dim() else scale)
    _check_shapes("codes", params, codes, scale)
    if len(code_scales) != len(codes):
        msg = f"there are {len(code_scales)} code_scales for {len(codes)} codes"
        raise ValueError(msg)
    for place, (each, sizes) in enumerate(zip(codes, code_scales, strict=True)):
        groups = -(-each.numel() // group)
        if each.dtype != torch.int8 or sizes.dtype != torch.float32 or sizes.shape != (groups,):
            msg = (
                f"codes[{place}] and code_scales[{place}] are {each.dtype} and {sizes.dtype} "
                f"{list(sizes.shape)}; {each.numel()} codes in groups of {group} must be "
                f"torch.int8 with scales of torch.float32 [{groups}]"
            )
            raise ValueError(msg)


def _check_shapes(
    name: str,
    params: Sequence[torch.Tensor],
    deltas: Sequence[torch.Tensor],
    scale: torch.Tensor,
) -> None:
    sets, rest = divmod(len(deltas), len(params)) if params else (0, len(deltas))
    if rest:
        msg = f"{len(deltas)} {name} are not a whole number of sets for {len(params)} weights"
        raise ValueError(msg)
    if scale.dim() and scale.shape != (sets,):
        msg = f"scale must be 0-dim or [sets] (got {list(scale.shape)} for {sets} sets)"
        raise ValueError(msg)
    for place, delta in enumerate(deltas):
        weight = params[place % len(params)]
        if delta.shape != weight.shape:
            msg = f"{name}[{place}] is {list(delta.shape)}, its weight is {list(weight.shape)}"
            raise ValueError(msg)


def _fake(*_: Any) -> None:
    return None


def numbers(
    shapes: Sequence[Sequence[int]], seed: int, device: torch.device, size: float = 1.0
) -> list[torch.Tensor]:
    """Return float32 tensors with values of many magnitudes."""
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for shape in map(tuple, shapes):
        exponents = torch.randn(shape, generator=generator, device="cpu")
        tensor = size * torch.randn(shape, generator=generator, device="cpu") * 10**exponents
        tensors.append(tensor.to(device))
    return tensors


def _params(dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
    return [tensor.to(dtype) for tensor in numbers(_SHAPES, 0, device)]


def _deltas(dtype: torch.dtype, sets: int, device: torch.device) -> list[torch.Tensor]:
    return [
        tensor.to(dtype)
        for each in range(sets)
        for tensor in numbers(_SHAPES, 1 + each, device, 1e-2)
    ]


def _samples(device: torch.device) -> Iterator[Sample]:
    half, three = torch.tensor(0.5, device=device), torch.tensor([0.1, -2.0, 3.0], device=device)
    for dtype in _DTYPES:
        for delta in (torch.float32, torch.bfloat16):
            name = f"{delta} to {dtype}"
            params = _params(dtype, device)
            yield Sample(name=name, arguments=(params, _deltas(delta, 1, device), half))
            params = _params(dtype, device)
            arguments: tuple[Any, ...] = (params, _deltas(delta, 3, device), three, True, 7)
            yield Sample(name=f"three times {name}, stochastic", arguments=arguments)
        for stochastic in (False, True):
            broken = torch.tensor(_BROKEN, device=device)
            params = [torch.zeros(len(_BROKEN), device=device).to(dtype), broken.to(dtype)]
            yield Sample(
                name=f"inf, NaN, denormals to {dtype}, stochastic {stochastic}",
                arguments=(params, [broken, broken.flip(0)], half * 2, stochastic, 1),
            )
    yield Sample(name="no tensor", arguments=([], [], half))
    params = _params(torch.float32, device)
    yield Sample(name="no delta", arguments=(params, [], half))
    transposed = [torch.ones(5, 7, device=device).t()]
    yield Sample(name="transposed", arguments=(transposed, numbers([(7, 5)], 1, device), half))


def _int8_samples(device: torch.device) -> Iterator[Sample]:
    half, two = torch.tensor(0.5, device=device), torch.tensor([0.1, -2.0], device=device)
    for dtype in _DTYPES:
        for group, sets, scale in ((64, 1, half), (300, 2, two), (5000, 1, half)):
            pairs = [
                quantize_int8(delta, group)[:2] for delta in _deltas(torch.float32, sets, device)
            ]
            codes, sizes = [codes for codes, _ in pairs], [sizes for _, sizes in pairs]
            name = f"{sets} sets in groups of {group} to {dtype}"
            arguments: tuple[Any, ...] = (_params(dtype, device), codes, sizes, scale, group)
            yield Sample(name=name, arguments=arguments)
    yield Sample(name=f"{name}, stochastic", arguments=(*arguments, True, 3))


def _large(device: torch.device) -> Iterator[Sample]:
    scale = torch.tensor(0.5, device=device)
    for dtype in (torch.float32, torch.bfloat16):
        params = [tensor.to(dtype) for tensor in numbers([(_LARGE,)] * 4, 0, device)]
        deltas = numbers([(_LARGE,)] * 4, 1, device)
        yield Sample(name=f"4 times 4M float32 to {dtype}", arguments=(params, deltas, scale))


def _int8_large(device: torch.device) -> Iterator[Sample]:
    scale = torch.tensor(0.5, device=device)
    params = [tensor.bfloat16() for tensor in numbers([(_LARGE,)] * 4, 0, device)]
    pairs = [quantize_int8(delta, 256)[:2] for delta in numbers([(_LARGE,)] * 4, 1, device)]
    codes, sizes = [codes for codes, _ in pairs], [sizes for _, sizes in pairs]
    name = "4 times 4M in blocks of 256 to bfloat16"
    yield Sample(name=name, arguments=(params, codes, sizes, scale, 256))


def _traffic(params: Sequence[torch.Tensor], deltas: Sequence[torch.Tensor], *_: Any) -> int:
    written = 2 * sum(param.nbytes for param in params)
    return written + sum(delta.nbytes for delta in deltas)


def _supports(query: Query) -> Support:
    reason = no_triton(query)
    if reason:
        return reason
    for name, facts in query.tensors:
        if facts is None or not facts.elements:
            continue
        if facts.dtype is None:
            return f"{name} have several dtypes"
        if facts.dtype == torch.float64:
            return "only the reference takes float64"
        if not facts.contiguous:
            return f"{name} are not contiguous"
        if not facts.aligned and name in {"params", "deltas", "codes"}:
            return f"{name} do not start at multiples of 16 bytes"
    group, elements = dict(query.options).get("group", 1), query["params"].elements
    if min(group, elements) > _LONGEST_GROUP:
        return f"only the reference takes groups of more than {_LONGEST_GROUP} elements"
    return True


apply_delta = define(
    OpSpec(
        name="apply_delta",
        summary="weights plus scaled deltas, rounded to the nearest or stochastically",
        reference=reference.apply_delta,
        fake=_fake,
        check=_check,
        samples=_samples,
        large=_large,
        mutates=frozenset({"params"}),
        traffic=_traffic,
        operations=per_element("deltas", 2),
    )
)
"""See `reference.apply_delta`."""

apply_int8_delta = define(
    OpSpec(
        name="apply_int8_delta",
        summary="weights plus scaled deltas that are int8 codes in groups",
        reference=reference.apply_int8_delta,
        fake=_fake,
        check=_check_int8,
        samples=_int8_samples,
        large=_int8_large,
        mutates=frozenset({"params"}),
        traffic=_traffic,
        operations=per_element("codes", 3),
    )
)
"""See `reference.apply_int8_delta`."""

HOST = tuple(
    Provider(
        op=op.spec.name,
        name="numba",
        run=run,
        supports=on_host.supports,
        priority=5,
        fewest=on_host.fewest,
    )
    for op, run in (
        (apply_delta, on_host.apply_delta),
        (apply_int8_delta, on_host.apply_int8_delta),
    )
)
INDUCTOR = (
    built.provider("apply_delta", on_inductor.apply_delta, on_inductor.recipe_of),
    built.provider("apply_int8_delta", on_inductor.apply_int8_delta, on_inductor.recipe_of),
)
for provider in (*HOST, *INDUCTOR):
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
    for op, run in (
        (apply_delta, tuning.apply_delta),
        (apply_int8_delta, tuning.apply_int8_delta),
    )
)
"""Providers that the plugin `triton-kernels` adds to a run."""
