"""Run `quantize_int8` and `dequantize_int8` with the compiled steps of `host`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from neaptide_kernels import host_threads
from neaptide_kernels.counter_random import keys

if TYPE_CHECKING:
    from neaptide_kernels.registry import Query, Support

_DTYPES = frozenset({torch.float32, torch.bfloat16})
BLOCK = 1024
"""Elements of a unit where a group is long, and of the decoder."""
_LONGEST = 1 << 16
"""Elements of the longest group that one thread takes as a whole: it fits in the second cache."""
_FEWEST = 1 << 20
_POSITIONS = 1 << 32


def quantizes(query: Query) -> Support:
    """Return True if the call is on a CPU and of float32 or bfloat16, otherwise a reason."""
    x = query["x"]
    if x.dtype not in _DTYPES:
        return f"it takes float32 and bfloat16 (x is {x.dtype})"
    if query["stochastic"] and x.elements > _POSITIONS:
        return "it rounds stochastically up to 2**32 elements"
    return host_threads.supports(query)


def dequantizes(query: Query) -> Support:
    """Return True if the call is on a CPU and to float32 or bfloat16, otherwise a reason."""
    if query["dtype"] not in _DTYPES:
        return f"it makes float32 and bfloat16 (dtype is {query['dtype']})"
    return host_threads.supports(query)


def fewest(_: Query) -> int:
    """Return the elements that are worth loading Numba, which takes a second, once even several."""
    return _FEWEST


def quantize(
    x: torch.Tensor, group: int, affine: bool, stochastic: bool, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run `quantize_int8` in Numba."""
    groups = -(-x.numel() // group)
    codes = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    scale = torch.empty(groups, dtype=torch.float32, device=x.device)
    zero = torch.empty(groups, dtype=torch.int8, device=x.device)
    source, target, scales, zeros = map(
        host_threads.array, (x.detach().contiguous().view(-1), codes.view(-1), scale, zero)
    )
    drawn = (stochastic, *map(np.uint32, keys(seed)))
    if group <= _LONGEST:
        if groups:
            _run(
                "quantize_groups", groups, group, source, target, scales, zeros, group, affine,
                *drawn,
            )  # fmt: skip
        return codes, scale, zero
    for each in range(groups):
        start = each * group
        part = source[start : start + group]
        blocks = -(-len(part) // BLOCK)
        lows, highs = np.empty((2, blocks), np.int32)
        _run("extremes", blocks, BLOCK, part, lows, highs, affine)
        _run(
            "quantize_group", blocks, BLOCK, part, target[start : start + group],
            scales[each : each + 1], zeros[each : each + 1], int(lows.min()), int(highs.max()),
            start, affine, *drawn,
        )  # fmt: skip
    return codes, scale, zero


def dequantize(
    codes: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None,
    group: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Run `dequantize_int8` in Numba."""
    values = torch.empty(codes.shape, dtype=dtype, device=codes.device)
    if codes.numel():
        zeros = torch.empty(0, dtype=torch.int8, device="cpu") if zero is None else zero
        arrays = map(
            host_threads.array,
            (codes.contiguous().view(-1), scale.contiguous(), zeros.contiguous(), values.view(-1)),
        )
        blocks = -(-codes.numel() // BLOCK)
        _run("dequantize", blocks, BLOCK, *arrays, min(group, codes.numel()))
    return values


def _run(name: str, units: int, size: int, *arguments: Any) -> None:
    """Run a step on units of `size` elements each."""
    host_threads.run(f"{__package__}.host", size, [host_threads.HostCall(name, units, arguments)])
