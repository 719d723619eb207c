"""The op `adamw_split_step` and its providers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.registry import (
    KERNELS,
    REFERENCE,
    OpSpec,
    Provider,
    Sample,
    define,
    per_element,
    relative_error,
    takes,
)
from neaptide_kernels.support import no_triton, triton_version

from . import on_host, reference, tuning
from .split_master import join, split

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neaptide_kernels.registry import Query, Support

_WITHIN = 1e-6
_SHAPES = ((1,), (17,), (0,), (63, 65), (2048,), ())
_BROKEN = (torch.nan, torch.inf, -torch.inf, 1e-40, 3e38, -3e38, 0.0)
_LARGE = 1 << 24


@takes(reference.AdamWSplitStep)
def _check(call: reference.AdamWSplitStep) -> None:
    hi, lr, step = call.hi, call.lr, call.step
    lists = {
        "lo": (call.lo, torch.int16),
        "exp_avg": (call.exp_avg, torch.float32),
        "exp_avg_sq": (call.exp_avg_sq, torch.float32),
        "grads": (call.grads, None),
    }
    for name, (tensors, dtype) in lists.items():
        if len(tensors) != len(hi):
            msg = f"{name} has {len(tensors)} tensors for {len(hi)} weights"
            raise ValueError(msg)
        for place, (weight, tensor) in enumerate(zip(hi, tensors, strict=True)):
            right = tensor.is_floating_point() if dtype is None else tensor.dtype == dtype
            if not right or tensor.shape != weight.shape:
                wanted = "floating" if dtype is None else dtype
                msg = (
                    f"{name}[{place}] is {tensor.dtype} {list(tensor.shape)}; for a weight of "
                    f"{list(weight.shape)} it must be {wanted} of the same shape"
                )
                raise ValueError(msg)
    wrong = next((weight.dtype for weight in hi if weight.dtype != torch.bfloat16), None)
    if wrong is not None:
        msg = f"hi, the upper halves of split masters, must be torch.bfloat16 (got {wrong})"
        raise ValueError(msg)
    if lr.dim() or step.dim() or lr.dtype not in {torch.float32, torch.float64}:
        msg = (
            f"lr must be a 0-dim float32 or float64, and step 0-dim (got {lr.dtype} "
            f"{list(lr.shape)}, {step.dtype} {list(step.shape)})"
        )
        raise ValueError(msg)
    if not (0 <= call.beta1 < 1 and 0 <= call.beta2 < 1):
        msg = f"beta1 and beta2 must be in [0, 1) (got {call.beta1}, {call.beta2})"
        raise ValueError(msg)


def _fake(*_: Any) -> None:
    return None


def agree(
    expected: Sequence[tuple[str, torch.Tensor]], got: Sequence[tuple[str, torch.Tensor]]
) -> Iterator[str]:
    """Yield one message for each master or moment with a relative error (of norms) above 1e-6."""
    right, result = dict(expected), dict(got)
    for name, tensor in right.items():
        kind, place = name.split("[")
        if kind == "lo":
            continue
        if kind == "hi":
            lower = f"lo[{place}"
            error = relative_error(join(tensor, right[lower]), join(result[name], result[lower]))
        else:
            error = relative_error(tensor, result[name])
        if error > _WITHIN:
            yield f"{name}: relative error {error:.2g} is more than {_WITHIN:.2g}"


def values(
    shapes: Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device
) -> tuple[list[torch.Tensor], ...]:
    """Return sample `hi`, `lo`, moments and gradients of many magnitudes, in the op's order."""
    generator = torch.Generator().manual_seed(len(shapes))

    def numbers(shape: Sequence[int], size: float) -> torch.Tensor:
        exponents = torch.randn(tuple(shape), generator=generator, device="cpu")
        return size * torch.randn(tuple(shape), generator=generator, device="cpu") * 10**exponents

    masters = [numbers(shape, 1.0).to(device) for shape in shapes]
    halves = [split(master) for master in masters]
    return (
        [hi for hi, _ in halves],
        [lo for _, lo in halves],
        [numbers(shape, 1e-2).to(device) for shape in shapes],
        [numbers(shape, 1e-2).square().to(device) for shape in shapes],
        [numbers(shape, 1e-1).to(device, dtype) for shape in shapes],
    )


def scalars(lr: float, step: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the op's arguments `lr` and `step`: a 0-dim float64 and a 0-dim float32."""
    rate = torch.tensor(lr, dtype=torch.float64, device=device)
    return rate, torch.tensor(float(step), device=device)


def _samples(device: torch.device) -> Iterator[Sample]:
    options = (0.9, 0.999, 1e-8, 1e-2)
    for dtype in (torch.bfloat16, torch.float32):
        for step in (1, 2, 1000):
            tensors, numbers = values(_SHAPES, dtype, device), scalars(1e-3, step, device)
            name = f"{len(_SHAPES)} tensors, {dtype} gradients, step {step}"
            yield Sample(name=name, arguments=(*tensors, *numbers, *options))
        tensors = values(_SHAPES, dtype, device)
        arguments: tuple[Any, ...] = (*tensors, *numbers, *options, False, True)
        yield Sample(name=f"{name}, as torch's fused AdamW", arguments=arguments)
    tensors, (rate, count) = values(_SHAPES, torch.float32, device), scalars(3e-4, 77, device)
    for decay in (0.0, 0.1):
        arguments = (*tensors, rate.float(), count, 0.3, 0.5, 1e-4, decay, True)
        yield Sample(name=f"float32 lr, weight decay {decay}, maximized", arguments=arguments)
    transposed = tuple(
        [tensor.t() for tensor in each] for each in values([(5, 7)], torch.float32, device)
    )
    yield Sample(name="transposed", arguments=(*transposed, rate, count, *options))
    yield Sample(name="no tensor", arguments=([], [], [], [], [], rate, count, *options))
    tensors = values([(len(_BROKEN),)], torch.float32, device)
    broken = torch.tensor(_BROKEN, device=device)
    tensors[4][0].copy_(broken)
    yield Sample(name="broken gradients", arguments=(*tensors, rate, count, *options))
    tensors = values([(len(_BROKEN),)], torch.float32, device)
    tensors[0][0], tensors[1][0] = split(broken)
    yield Sample(name="broken weights", arguments=(*tensors, rate, count, *options))


def _large(device: torch.device) -> Iterator[Sample]:
    for dtype in (torch.bfloat16, torch.float32):
        tensors = values([(_LARGE // 4,)] * 4, dtype, device)
        name = f"4 tensors of 4M, {dtype} gradients"
        yield Sample(name=name, arguments=(*tensors, *scalars(1e-3, 10, device)))


@takes(reference.AdamWSplitStep)
def _traffic(call: reference.AdamWSplitStep) -> int:
    halves_and_moments = 2 * sum(weight.numel() * (2 + 2 + 4 + 4) for weight in call.hi)
    return halves_and_moments + sum(grad.nbytes for grad in call.grads)


def _supports(query: Query) -> Support:
    reason = no_triton(query)
    if reason:
        return reason
    for name, facts in query.tensors:
        if facts is None or not facts.elements:
            continue
        if facts.dtype is None:
            return f"{name} have several dtypes"
        if not facts.contiguous:
            return f"{name} are not contiguous"
        if not facts.aligned:
            return f"{name} do not start at multiples of 16 bytes"
    if query["grads"].dtype == torch.float64:
        return "only the reference takes float64 gradients"
    return True


adamw_split_step = define(
    OpSpec(
        name="adamw_split_step",
        summary="AdamW on float32 masters stored as bfloat16 weights and int16 rests",
        reference=reference.adamw_split_step,
        fake=_fake,
        check=_check,
        samples=_samples,
        large=_large,
        mutates=frozenset({"hi", "lo", "exp_avg", "exp_avg_sq"}),
        traffic=_traffic,
        operations=per_element("hi", 18),
        agree=agree,
    )
)
"""See `reference.adamw_split_step`."""

KERNELS.add(
    Provider(
        op=adamw_split_step.spec.name,
        name="numba",
        run=on_host.adamw_split_step,
        supports=on_host.supports,
        priority=5,
    )
)


def has_kernel() -> bool:
    """Return whether this process has a provider of `adamw_split_step` besides the reference."""
    return len(KERNELS.providers(adamw_split_step.spec.name)) > 1


def runs_by_kernel(arguments: Sequence[Any]) -> bool:
    """Return whether a provider that is not the reference would run a call with `arguments`."""
    query = KERNELS.query(adamw_split_step.spec.name, arguments)
    return KERNELS.choose(query).provider.name != REFERENCE


TRITON = (
    Provider(
        op=adamw_split_step.spec.name,
        name="triton",
        run=tuning.adamw_split_step,
        supports=_supports,
        priority=10,
        version=f"{triton_version()}/1",
        configs=tuning.configs,
    ),
)
"""Providers that the plugin `triton-kernels` adds to a run."""
