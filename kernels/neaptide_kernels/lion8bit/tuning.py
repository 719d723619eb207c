"""How the 8-bit Lion kernel is launched: one program for some blocks of one tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.counter_random import keys, signed
from neaptide_kernels.shipping import Shipped
from neaptide_kernels.state_codes import BLOCK
from neaptide_kernels.state_codes.lists import aligned
from neaptide_kernels.tensor_table import table_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from neaptide.kernels import Query

CONFIGS: tuple[Mapping[str, Any], ...] = (
    {"rows": 8, "num_warps": 8},
    {"rows": 4, "num_warps": 4},
    {"rows": 2, "num_warps": 2},
    {"rows": 16, "num_warps": 16},
)


def configs(_: Query) -> Sequence[Mapping[str, Any]]:
    """Return the tiles and warps to choose from."""
    return CONFIGS


def step(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    exp_avg: Sequence[torch.Tensor],
    exp_avg_scale: Sequence[torch.Tensor],
    steps: Sequence[torch.Tensor],
    lr: torch.Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
    seed: int,
    *,
    rows: int = 8,
    num_warps: int = 8,
) -> None:
    """Run `lion8bit_step` in Triton, in one launch."""
    import triton.language as tl  # noqa: PLC0415 - only where it is installed

    from . import kernel  # noqa: PLC0415 - it needs Triton

    state = (exp_avg, exp_avg_scale)
    table = table_of((params, grads, *state, steps), rows * BLOCK)
    if not table.chunks:
        return
    numbers = torch.tensor([beta1, beta2, weight_decay], dtype=torch.float32, device="cpu").tolist()
    dtypes = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}
    kernel.lion_step[(table.chunks,)](
        table.rows, table.owners, lr, *numbers, *map(signed, keys(seed)),
        WEIGHT=dtypes[params[0].dtype], GRADIENT=dtypes[grads[0].dtype], ROWS=rows,
        ALIGNMENT=16 if aligned(params, grads, *state) else 1,
        num_warps=num_warps,
    )  # fmt: skip


def shipped() -> Iterator[Shipped]:
    """Yield the launches for bfloat16 weights in every config, and one for float32."""
    import triton.language as tl  # noqa: PLC0415 - only where it is installed

    cases = [("bf16", tl.bfloat16, config) for config in CONFIGS]
    for name, dtype, config in (*cases, ("fp32", tl.float32, CONFIGS[0])):
        rows, warps = config["rows"], config["num_warps"]
        numbers = ("beta1", "beta2", "weight_decay")
        yield Shipped(
            name=f"lion_step: {name}, {rows}x{BLOCK}, {warps} warps",
            module="neaptide_kernels.lion8bit.kernel",
            kernel="lion_step",
            types={"table": "*i64", "owners": "*i32", "lr": "*fp32"}
            | dict.fromkeys(numbers, "fp32")
            | {"first_key": "i32", "second_key": "i32"},
            constants={"WEIGHT": dtype, "GRADIENT": dtype, "ROWS": rows, "ALIGNMENT": 16},
            aligned=("table", "owners", "lr"),
            options={"num_warps": warps},
        )
