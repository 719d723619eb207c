"""The op `lion_step` and its providers."""

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
    takes,
)
from neaptide_kernels.state_codes.trials import gradients, weights

from . import on_host, reference

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neaptide_kernels.shipping import ShippedKernel

_LARGE = 1 << 22


@takes(reference.LionStep)
def _check(call: reference.LionStep) -> None:
    for name, tensors in (("grads", call.grads), ("exp_avg", call.exp_avg)):
        if len(tensors) != len(call.params):
            msg = f"lion_step got {len(call.params)} params and {len(tensors)} {name}"
            raise ValueError(msg)
        for place, (param, tensor) in enumerate(zip(call.params, tensors, strict=True)):
            if not param.is_floating_point() or (tensor.dtype, tensor.shape) != (
                param.dtype,
                param.shape,
            ):
                msg = (
                    f"lion_step: {name}[{place}] is {tensor.dtype} {list(tensor.shape)}, its "
                    f"weight {param.dtype} {list(param.shape)}; both must be floating and alike"
                )
                raise ValueError(msg)
    if call.seeds and len(call.seeds) != len(call.params):
        msg = f"lion_step got {len(call.params)} params and {len(call.seeds)} seeds"
        raise ValueError(msg)
    if not (0 <= call.beta1 < 1 and 0 <= call.beta2 < 1):
        msg = f"beta1 and beta2 must be in [0, 1) (got {call.beta1}, {call.beta2})"
        raise ValueError(msg)


def _fake(*_: Any) -> None:
    return None


def _samples(device: torch.device) -> Iterator[Sample]:
    for dtype in (torch.float32, torch.bfloat16):
        for name, grads in gradients(dtype, device):
            params, means = weights(dtype, grads), [each.nan_to_num(0, 0, 0) for each in grads]
            for seeds in ([], [3 + place for place in range(len(grads))]):
                copies = [[one.clone() for one in each] for each in (params, grads, means)]
                yield Sample(
                    name=f"{dtype}, {name}, {len(seeds)} seeds",
                    arguments=(*copies, seeds, 1e-2, 0.9, 0.99, 0.1),
                )


def _large(device: torch.device) -> Iterator[Sample]:
    for dtype in (torch.float32, torch.bfloat16):
        tensors = [[torch.randn(_LARGE, device=device).to(dtype) for _ in range(4)] for _ in "pgm"]
        seeds = [1, 2, 3, 4] if dtype == torch.bfloat16 else []
        yield Sample(name=f"4 of 4M {dtype}", arguments=(*tensors, seeds, 1e-4))


@takes(reference.LionStep)
def _traffic(call: reference.LionStep) -> int:
    return sum(2 * (param.nbytes + param.nbytes) + param.nbytes for param in call.params)


lion_step = define(
    OpSpec(
        name="lion_step",
        summary="Lion over many tensors, with 16-bit weights rounded stochastically",
        reference=reference.lion_step,
        fake=_fake,
        check=_check,
        samples=_samples,
        large=_large,
        mutates=frozenset({"params", "exp_avg"}),
        traffic=_traffic,
        operations=per_element("params", 9),
    )
)
"""See `reference.lion_step`."""

KERNELS.add(
    Provider(
        op=lion_step.spec.name,
        name="numba",
        run=on_host.lion_step,
        supports=on_host.supports,
        priority=5,
    )
)


def runs_by_kernel(arguments: Sequence[Any]) -> bool:
    """Return whether a provider that is not the reference would run a call with `arguments`."""
    return KERNELS.choose(KERNELS.query(lion_step.spec.name, arguments)).provider.name != REFERENCE


def shipped() -> Iterator[ShippedKernel]:
    """Yield nothing: there is no kernel in Triton."""
    yield from ()
