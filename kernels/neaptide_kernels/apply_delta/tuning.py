"""Launches that apply deltas: one launch over the chunks of all tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.counter_random import keys
from neaptide_kernels.registry import takes
from neaptide_kernels.shipping import ShippedKernel
from neaptide_kernels.tensor_table import table_of

from .reference import FloatDeltas, Int8Deltas

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from neaptide_kernels.registry import Query

CONFIGS: tuple[Mapping[str, Any], ...] = (
    {"chunk": 1024, "num_warps": 4},
    {"chunk": 2048, "num_warps": 8},
    {"chunk": 2048, "num_warps": 4},
)


def configs(_: Query) -> Sequence[Mapping[str, Any]]:
    """Return the candidate chunk sizes and numbers of warps."""
    return CONFIGS


@takes(FloatDeltas)
def apply_delta(call: FloatDeltas, **config: int) -> None:
    """Run `apply_delta` in Triton, in one launch."""
    apply_int8_delta(call.params, call.deltas, (), call.scale, 1, *call[3:], **config)


@takes(Int8Deltas)
def apply_int8_delta(call: Int8Deltas, *, chunk: int = 1024, num_warps: int = 4) -> None:
    """Run `apply_int8_delta` in Triton, in one launch."""
    params, deltas, code_scales, scale, group, stochastic, seed = call
    if not deltas:
        return
    from . import kernel  # noqa: PLC0415 - it needs Triton

    tensors, sets = len(params), len(deltas) // len(params)
    lists = [
        each[first : first + tensors]
        for each in (params, deltas, code_scales)
        for first in range(0, len(each), tensors)
    ]
    table = table_of(lists, chunk)
    if not table.chunks:
        return
    scale = scale.contiguous()
    group = min(group, max(param.numel() for param in params))
    narrow = params[0].dtype != torch.float32
    kernel.apply_deltas[(table.chunks,)](
        table.rows, table.owners, scale, table.rows.shape[1], scale.dim(), group, *keys(seed),
        PARAM=_triton_dtype(params[0].dtype), DELTA=_triton_dtype(deltas[0].dtype), SETS=sets,
        STOCHASTIC=stochastic and narrow, CHUNK=chunk,
        num_warps=num_warps, enable_fp_fusion=False,
    )  # fmt: skip


def shipped() -> Iterator[ShippedKernel]:
    """Yield a kernel for bfloat16 weights in each config, and one kernel for float16 weights."""
    import triton.language as tl  # noqa: PLC0415 - only where it is installed

    cases = [
        (tl.bfloat16, delta, stochastic, config)
        for config in CONFIGS
        for delta, stochastic in ((tl.float32, False), (tl.bfloat16, True), (tl.int8, True))
    ]
    cases.append((tl.float16, tl.float32, True, CONFIGS[0]))
    sizes = dict.fromkeys(("columns", "scale_step", "group"), "i32")
    for param, delta, stochastic, config in cases:
        chunk, warps = config["chunk"], config["num_warps"]
        kind = f"{delta} to {param}{', stochastic' * stochastic}"
        yield ShippedKernel(
            name=f"apply_deltas: {kind}, {chunk}, {warps} warps",
            module="neaptide_kernels.apply_delta.kernel",
            kernel="apply_deltas",
            types={"rows": "*i64", "owners": "*i32", "scale": "*fp32"}
            | sizes
            | {"first_key": "i64", "second_key": "i64"},
            constants={
                "PARAM": param,
                "DELTA": delta,
                "SETS": 1,
                "STOCHASTIC": stochastic,
                "CHUNK": chunk,
            },
            aligned=("rows", "owners", "scale", "group"),
            options={"num_warps": warps, "enable_fp_fusion": False},
        )


def _triton_dtype(dtype: torch.dtype) -> Any:
    import triton.language as tl  # noqa: PLC0415 - only where it is installed

    return getattr(tl, str(dtype).removeprefix("torch."))
