"""Launch kernels that update 8-bit state; each program updates some blocks of one tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.counter_random import keys, signed
from neaptide_kernels.shipping import ShippedKernel
from neaptide_kernels.tensor_table import table_of

from . import BLOCK, as_float32
from .lists import aligned

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from neaptide_kernels.registry import Query

CONFIGS: tuple[Mapping[str, Any], ...] = (
    {"rows": 8, "num_warps": 8},
    {"rows": 4, "num_warps": 4},
    {"rows": 2, "num_warps": 2},
    {"rows": 16, "num_warps": 16},
)


def configs(_: Query) -> Sequence[Mapping[str, Any]]:
    """Return the candidate tile sizes and numbers of warps."""
    return CONFIGS


def launch(
    kernel: Any,
    lists: Sequence[Sequence[torch.Tensor]],
    lr: torch.Tensor,
    numbers: Sequence[float],
    seed: int,
    *,
    rows: int = 8,
    num_warps: int = 8,
) -> None:
    """Update all tensors in one launch.

    Args:
        kernel: takes the two tables of a `TensorTable`, the learning rate, the numbers and the
            keys of the seed.
        lists: weights, gradients, state and step counts, in this order.
        lr: learning rate, 0-dim float32.
        numbers: the kernel's other numbers; they are rounded to float32.
        seed: seed of the stochastic rounding.
        rows: number of blocks per program.
        num_warps: number of warps per program.
    """
    import triton.language as tl  # noqa: PLC0415 - only where it is installed

    table = table_of(lists, rows * BLOCK)
    if not table.chunks:
        return
    dtypes = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}
    kernel[(table.chunks,)](
        table.rows, table.owners, lr, *as_float32(*numbers), *map(signed, keys(seed)),
        WEIGHT=dtypes[lists[0][0].dtype], GRADIENT=dtypes[lists[1][0].dtype], ROWS=rows,
        ALIGNMENT=16 if aligned(*lists[:-1]) else 1,
        num_warps=num_warps,
    )  # fmt: skip


def shipped(module: str, kernel: str, numbers: Sequence[str]) -> Iterator[ShippedKernel]:
    """Yield a kernel for bfloat16 weights in each config, and one kernel for float32 weights."""
    import triton.language as tl  # noqa: PLC0415 - only where it is installed

    cases = [("bf16", tl.bfloat16, config) for config in CONFIGS]
    for name, dtype, config in (*cases, ("fp32", tl.float32, CONFIGS[0])):
        rows, warps = config["rows"], config["num_warps"]
        yield ShippedKernel(
            name=f"{kernel}: {name}, {rows}x{BLOCK}, {warps} warps",
            module=module,
            kernel=kernel,
            types={"table": "*i64", "owners": "*i32", "lr": "*fp32"}
            | dict.fromkeys(numbers, "fp32")
            | {"first_key": "i32", "second_key": "i32"},
            constants={"WEIGHT": dtype, "GRADIENT": dtype, "ROWS": rows, "ALIGNMENT": 16},
            aligned=("table", "owners", "lr"),
            options={"num_warps": warps},
        )
