"""A plan knows what Neaptide's own ops take on a GPU beside their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import neaptide_kernels.catalogue  # noqa: F401 - it defines all ops
from neaptide_kernels.parts import parts_by
from neaptide_kernels.registry import KERNELS
from neaptide_toolkit.dry_run.allocations import DEVICE, AllocationLog
from neaptide_toolkit.dry_run.clock import Clock
from neaptide_toolkit.dry_run.own.ops import OwnOps
from neaptide_toolkit.dry_run.own.parts import two_parts
from neaptide_toolkit.dry_run.unknown import Unknown
from neaptide_toolkit.machine import profiles
from neaptide_toolkit.tensors import nested_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

PART = 1 << 24
"""Elements of 8-bit state that are updated at a time on a GPU."""

Arguments = tuple[Any, ...]


def adam8bit(elements: int) -> Arguments:
    weight, gradient = torch.zeros(elements), torch.zeros(elements)
    mean, square = (torch.zeros(elements, dtype=kind) for kind in (torch.int8, torch.uint8))
    scales = [[torch.zeros(-(-elements // 256))] for _ in range(2)]
    lists = [weight], [gradient], [mean], [square], *scales, [torch.ones(())]
    return *lists, torch.full((), 1e-3), 0.9, 0.999, 1e-8, 0.0, 1


def lion8bit(elements: int) -> Arguments:
    weight, gradient = torch.zeros(elements), torch.zeros(elements)
    mean, scale = torch.zeros(elements, dtype=torch.int8), torch.zeros(-(-elements // 256))
    lists = [weight], [gradient], [mean], [scale], [torch.ones(())]
    return *lists, torch.full((), 1e-3), 0.9, 0.99, 0.0, 1


def chunked_cross_entropy(dtype: torch.dtype) -> Arguments:
    hidden, weight = torch.zeros(1024, 64, dtype=dtype), torch.zeros(4096, 64, dtype=dtype)
    options = 256, -100, None, None
    return hidden, weight, None, torch.zeros(1024, dtype=torch.int64), *options, True, True, False


def rms_norm(dtype: torch.dtype, backward: bool) -> Arguments:  # noqa: FBT001 - one of two ops
    x, weight = torch.zeros(2048, 1024, dtype=dtype), torch.zeros(1024, dtype=dtype)
    if backward:
        return x.clone(), x, weight, torch.zeros(2048), 0.0, True, True
    return x, weight, 1e-6, 0.0, True


def gated_unit() -> Arguments:
    gate, up = torch.zeros(2048, 1024), torch.zeros(2048, 1024)
    return gate, up, "silu"


CASES: dict[str, tuple[str, Callable[[], Arguments]]] = {
    "adam8bit, one part": ("adam8bit_step", lambda: adam8bit(2**20)),
    "adam8bit, four parts and a rest": ("adam8bit_step", lambda: adam8bit(4 * PART + 7)),
    "lion8bit, three parts": ("lion8bit_step", lambda: lion8bit(3 * PART)),
    "logits in float32": ("chunked_cross_entropy", lambda: chunked_cross_entropy(torch.float32)),
    "logits in bf16": ("chunked_cross_entropy", lambda: chunked_cross_entropy(torch.bfloat16)),
    "a norm": ("rms_norm", lambda: rms_norm(torch.float32, False)),
    "a norm in bf16": ("rms_norm", lambda: rms_norm(torch.bfloat16, False)),
    "a norm's gradients": ("rms_norm_backward", lambda: rms_norm(torch.float32, True)),
    "a norm's gradients in bf16": ("rms_norm_backward", lambda: rms_norm(torch.bfloat16, True)),
    "a gated unit": ("gated_unit", gated_unit),
    "its gradients": ("gated_unit_backward", lambda: (torch.zeros(2048, 1024), *gated_unit())),
}


def planned(op: str, arguments: Arguments) -> int:
    log = AllocationLog(accelerated=True)
    clock = Clock([profiles.load("rtx4090").rates], log.is_on_host)
    own = OwnOps(lambda one: not log.is_on_host(one))
    mode = Unknown(log.made, clock.ran, lambda *call: own.workspace(*call[:2]), own.plain)
    parts = two_parts(mode.is_unknown, log.is_on_host, clock.times, accelerated=True)
    for one in nested_tensors(arguments):
        log.made(one.untyped_storage(), device=DEVICE)
        if one.ndim:
            mode.forget([one])
    log.during = "call"
    before = sum(change.bytes for change in log.changes)
    with mode, parts_by(parts):
        KERNELS.ops[op](*arguments)
    return log.peaks("device")["call"].bytes - before


def measured(op: str, arguments: Arguments) -> int:
    given = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.cuda, arguments)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    KERNELS.ops[op](*given)
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("name", CASES)
def test_an_op_takes_what_the_plan_says(name: str) -> None:
    op, make = CASES[name]
    assert planned(op, make()) == pytest.approx(measured(op, make()), rel=0.05)
