"""Run `apply_delta` and `apply_int8_delta` with the compiled steps of `host`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from neaptide_kernels import host_threads
from neaptide_kernels.counter_random import keys
from neaptide_kernels.int8.reference import dequantize_int8
from neaptide_kernels.parts import slices
from neaptide_kernels.registry import takes

from .reference import STRIDE_BITS, FloatDeltas, Int8Deltas, add, by_weight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide_kernels.registry import Query, Support

_DTYPES = frozenset({torch.float32, torch.bfloat16})
BLOCK = 1024
"""Elements of a unit: two float32 arrays of them fit in the first cache."""
_FEWEST = 1 << 20
_PIECE = 1 << 20
"""Elements of which a float32 sum is held between several deltas of one weight."""


def supports(query: Query) -> Support:
    """Return True if the call is on a CPU and of float32 and bfloat16, otherwise a reason."""
    floating = [name for name, _ in query.tensors if name in {"params", "deltas"}]
    for name in floating:
        facts = query[name]
        if facts.count and facts.dtype not in {None, *_DTYPES}:
            return f"it takes float32 and bfloat16, and {name} are {facts.dtype}"
    return host_threads.supports(query)


def fewest(query: Query) -> int:
    """Return the elements that are worth loading Numba, which takes a second, once even several.

    A jump rounds to the nearest, and is rare. Optimizers round stochastically, in every update.
    """
    return 0 if query["stochastic"] else _FEWEST


@takes(FloatDeltas)
def apply_delta(call: FloatDeltas) -> None:
    """Run `apply_delta` in Numba; the host reads `scale`."""
    calls: list[host_threads.HostCall] = []
    rounding = _rounding(call)
    for place, (weight, deltas) in enumerate(by_weight(call.params, call.deltas, call.scale)):
        if weight.dtype in _DTYPES and all(delta.dtype in _DTYPES for delta, _ in deltas):
            calls += _add(weight, place, [_Term(*pair) for pair in deltas], rounding)
        else:  # one of a list of several dtypes
            add(weight, place, deltas, _seed(call))
    _run(calls)


@takes(Int8Deltas)
def apply_int8_delta(call: Int8Deltas) -> None:
    """Run `apply_int8_delta` in Numba; the host reads `scale`."""
    calls: list[host_threads.HostCall] = []
    rounding = _rounding(call)
    for place, (weight, pairs) in enumerate(by_weight(call.params, call.codes, call.scale)):
        given = list(zip(pairs, call.code_scales[place :: len(call.params)], strict=True))
        if weight.dtype in _DTYPES:
            coded = [_Term(*pair, sizes.contiguous(), call.group) for pair, sizes in given]
            calls += _add(weight, place, coded, rounding)
            continue
        deltas = [
            (dequantize_int8(codes, sizes, None, call.group), scale)
            for (codes, scale), sizes in given
        ]
        add(weight, place, deltas, _seed(call))
    _run(calls)


def _seed(call: FloatDeltas | Int8Deltas) -> int | None:
    return call.seed if call.stochastic else None


_Rounding = tuple[bool, np.uint32, np.uint32]
"""Whether sums are rounded stochastically, and the two keys of the seed."""


def _rounding(call: FloatDeltas | Int8Deltas) -> _Rounding:
    first, second = keys(call.seed if call.stochastic else 0)
    return call.stochastic, np.uint32(first), np.uint32(second)


class _Term(NamedTuple):
    """A delta and its scale."""

    delta: torch.Tensor
    scale: torch.Tensor
    code_scales: torch.Tensor | None = None
    """With them `delta` is codes."""
    group: int = 1


def _add(
    weight: torch.Tensor, place: int, terms: Sequence[_Term], rounding: _Rounding
) -> list[host_threads.HostCall]:
    """Return the call that adds a delta to a weight, or add it now where that takes several.

    Deltas are added one after the other. All sums but the last stay in float32.
    """
    if not weight.numel() or not terms:
        return []
    flat = weight.detach().reshape(-1)
    *first, last = [term._replace(delta=term.delta.detach().reshape(-1)) for term in terms]
    if not first and weight.is_contiguous():
        return [_call(flat, flat, last, 0, (*rounding, place << STRIDE_BITS))]
    nearest = (False, *rounding[1:], 0)
    for part in slices(len(flat), _PIECE if first else len(flat)):
        total = flat[part].float() if first else flat[part]
        for term in first:
            moved = term._replace(delta=term.delta[part])
            _run([_call(total, total, moved, part.start, nearest)])
        drawn = (*rounding, (place << STRIDE_BITS) + part.start)
        moved = last._replace(delta=last.delta[part])
        _run([_call(flat[part], total, moved, part.start, drawn)])
    if not weight.is_contiguous():
        weight.detach().copy_(flat.view(weight.shape))
    return []


def _call(
    weight: torch.Tensor,
    before: torch.Tensor,
    term: _Term,
    start: int,
    drawn: tuple[bool, np.uint32, np.uint32, int],
) -> host_threads.HostCall:
    """Return the call that sets `weight`; the delta's first element is `start` of a whole one."""
    target = host_threads.array(weight)
    source = target if before is weight else host_threads.array(before)
    given = (target, source, host_threads.array(term.delta))
    units, scale = -(-len(target) // BLOCK), np.float32(term.scale.item())
    if term.code_scales is None:
        return host_threads.HostCall("add_delta", units, (*given, scale, *drawn))
    coded = (host_threads.array(term.code_scales), min(term.group, start + len(target)), start)
    return host_threads.HostCall("add_codes", units, (*given, *coded, scale, *drawn))


def _run(calls: Sequence[host_threads.HostCall]) -> None:
    host_threads.run(f"{__package__}.host", BLOCK, calls)
