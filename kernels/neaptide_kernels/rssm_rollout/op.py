"""The op `rssm_rollout` and its providers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.registry import OpSpec, Provider, Sample, define, takes
from neaptide_kernels.support import no_triton, triton_version

from . import reference, tuning
from .reference import RolloutCall

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neaptide_kernels.registry import Query, Support

ALLOWED = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Largest permitted relative error of the deterministic states, by dtype."""
SHAPES = {
    (1, 1, 1, 1, 1, 1): 0,
    (3, 2, 4, 17, 3, 5): 2,
    (2, 1, 3, 65, 2, 8): 69,
    (1, 1, 2, *tuning.SIZES): 14,
    (1, 2, 1, 16, 4, 4): 10,
    (2, 3, 0, 8, 2, 3): 0,
    (2, 0, 3, 8, 2, 3): 0,
}
"""Members, starts, steps, units, groups and categories of the samples, and the seed of their
numbers. With these seeds no two categories are nearly equal, so a provider's rounding changes no
category."""
_GATES = 3


@takes(RolloutCall)
def _check(call: RolloutCall) -> None:
    if call.deter.dim() != 3 or call.stoch.dim() != 3 or call.drive.dim() != 4:  # noqa: PLR2004
        msg = (
            f"rssm_rollout takes deter [members, starts, size], stoch [members, starts, groups] "
            f"and drive [members, starts, steps, 3 * size] (got {list(call.deter.shape)}, "
            f"{list(call.stoch.shape)} and {list(call.drive.shape)})"
        )
        raise ValueError(msg)
    (members, starts, size), groups, steps = (
        call.deter.shape,
        call.stoch.shape[2],
        call.drive.shape[2],
    )
    if not size or not groups:
        msg = f"rssm_rollout needs at least one unit and one group (got {size} and {groups})"
        raise ValueError(msg)
    rows = call.head.shape[1] if call.head.dim() > 1 else 0
    logits, gates = groups * max(1, -(-rows // groups)), _GATES * size
    wanted = ([starts, size], [starts, groups], [starts, steps, gates], [logits, gates],
              [gates, size], [gates], [logits, size], [logits])  # fmt: skip
    for name, each, shape in zip(RolloutCall._fields, call, wanted, strict=True):
        dtype = torch.int64 if name == "stoch" else call.deter.dtype
        there = each.is_floating_point() or name == "stoch"
        if list(each.shape) != [members, *shape] or each.dtype != dtype or not there:
            kind = dtype if name != "deter" else "floating"
            msg = (
                f"rssm_rollout: {name} is {each.dtype} {list(each.shape)}; should be {kind} "
                f"{[members, *shape]}"
            )
            raise ValueError(msg)


@takes(RolloutCall)
def _fake(call: RolloutCall) -> tuple[torch.Tensor, torch.Tensor]:
    *rows, _ = call.drive.shape
    return (
        call.deter.new_empty(*rows, call.deter.shape[2]),
        call.stoch.new_empty(*rows, call.stoch.shape[2]),
    )


def example(
    shape: Sequence[int], device: torch.device, dtype: torch.dtype, seed: int = 0
) -> RolloutCall:
    """Return a call with drawn weights, the same on every device.

    Args:
        shape: members, starts, steps, units, groups and categories.
        device: of the tensors.
        dtype: of the numbers.
        seed: of the drawn numbers.
    """
    members, starts, steps, size, groups, categories = shape
    generator = torch.Generator().manual_seed(seed)

    def drawn(*sizes: int, scale: float = 1.0) -> torch.Tensor:
        numbers = torch.randn(members, *sizes, generator=generator, device="cpu") * scale
        return numbers.to(device=device, dtype=dtype)

    logits, gates = groups * categories, _GATES * size
    rows = (members, starts, groups)
    stoch = torch.randint(categories, rows, generator=generator, device="cpu")
    return RolloutCall(
        deter=drawn(starts, size, scale=0.5),
        stoch=stoch.to(device),
        drive=drawn(starts, steps, gates),
        mixing=drawn(logits, gates, scale=groups**-0.5),
        recurrent=drawn(gates, size, scale=size**-0.5),
        recurrent_bias=drawn(gates, scale=0.1),
        head=drawn(logits, size, scale=4 * size**-0.5),
        head_bias=drawn(logits),
    )


def _samples(device: torch.device) -> Iterator[Sample]:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for shape, seed in SHAPES.items():
            call = example(shape, device, dtype, seed)
            yield Sample(name=f"{list(shape)} {dtype}", arguments=call)
    shape = (3, 2, 4, 17, 3, 5)
    call = example(shape, device, torch.float32, SHAPES[shape])
    strided = call._replace(
        recurrent=call.recurrent.mT.contiguous().mT, drive=call.drive.repeat(1, 1, 2, 1)[:, :, ::2]
    )
    yield Sample(name="with gaps", arguments=strided)


def _large(device: torch.device) -> Iterator[Sample]:
    dtypes = (torch.float32,) if device.type == "cpu" else (torch.bfloat16, torch.float32)
    for dtype in dtypes:
        for starts, steps in ((1, 40), (32, 10)):
            shape = (3, starts, steps, *tuning.SIZES)
            yield Sample(name=f"{list(shape)} {dtype}", arguments=example(shape, device, dtype))


def _supports(query: Query) -> Support:
    reason = no_triton(query)
    if reason:
        return reason
    if query["deter"].dtype == torch.float64:
        return "float64 is left to the reference"
    size, groups = query["deter"].shape[2], query["stoch"].shape[2]
    sizes = (size, groups, query["head"].shape[1] // groups)
    if any(each > largest for each, largest in zip(sizes, tuning.LARGEST, strict=True)):
        return "the kernel has up to {} units, {} groups and {} categories".format(*tuning.LARGEST)
    return True


@takes(RolloutCall)
def _traffic(call: RolloutCall) -> int:
    """Weights are read once, however many the steps are, and of `mixing` a row a step and group."""
    results = sum(each.nbytes for each in _fake(*call))
    chosen = call.stoch.numel() * call.drive.shape[2] * call.mixing.shape[2]
    mixing = min(call.mixing.numel(), chosen) * call.mixing.element_size()
    given = (each.nbytes for each in call if each is not call.mixing)
    return sum(given) + mixing + results


def _flops(*shapes: Sequence[int], out_shape: Any) -> int:  # noqa: ARG001 - torch's
    _, _, (members, starts, steps, _), _, recurrent, _, head, _ = shapes
    rows, size = recurrent[1] + head[1], recurrent[2]
    return 2 * members * starts * steps * rows * size


def _operations(query: Query) -> int:
    members, starts, steps, gates = query["drive"].shape
    groups, logits = query["stoch"].shape[2], query["head"].shape[1]
    each: int = (groups + 8) * gates + 2 * logits
    return int(members * starts * steps * each)


rssm_rollout = define(
    OpSpec(
        name="rssm_rollout",
        summary="steps of an ensemble of GRU cells with categorical states",
        reference=reference.rssm_rollout,
        fake=_fake,
        check=_check,
        samples=_samples,
        large=_large,
        tolerances=ALLOWED,
        traffic=_traffic,
        flops=_flops,
        operations=_operations,
    )
)
"""See `reference.rssm_rollout`."""

TRITON = (
    Provider(
        op="rssm_rollout",
        name="triton",
        run=tuning.rssm_rollout,
        supports=_supports,
        priority=10,
        version=f"{triton_version()}/1",
        configs=tuning.configs,
    ),
)
"""Providers that the plugin `triton-kernels` adds to a run."""
