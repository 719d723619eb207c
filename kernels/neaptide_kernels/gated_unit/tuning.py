"""Launches of the gated units' kernels over tiles of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neaptide_kernels.shipping import ShippedKernel

from .reference import ACTIVATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from neaptide_kernels.registry import Query

CONFIGS: tuple[Mapping[str, Any], ...] = (
    {"tile": 1024, "num_warps": 4},
    {"tile": 2048, "num_warps": 4},
    {"tile": 2048, "num_warps": 8},
)


def configs(_: Query) -> Sequence[Mapping[str, Any]]:
    """Return the candidate tile sizes and numbers of warps."""
    return CONFIGS


def gated_unit(
    gate: torch.Tensor, up: torch.Tensor, activation: str, *, tile: int = 1024, num_warps: int = 4
) -> torch.Tensor:
    """Run `gated_unit` in one launch."""
    y = gate.new_empty(gate.shape)
    if y.numel():
        from . import kernel  # noqa: PLC0415 - it needs Triton

        one, two = _rows(gate), _rows(up)
        kernel.gate_rows[_grid(one, tile)](
            one, two, y, one.stride(0), two.stride(0), one.shape[1],
            ACTIVATION=activation, TILE=tile, num_warps=num_warps,
        )  # fmt: skip
    return y


def gated_unit_backward(
    gradient: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    activation: str,
    *,
    tile: int = 1024,
    num_warps: int = 4,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `gated_unit_backward` in one launch."""
    of_gate, of_up = gate.new_empty(gate.shape), gate.new_empty(gate.shape)
    if gate.numel():
        from . import kernel  # noqa: PLC0415 - it needs Triton

        given, one, two = _rows(gradient), _rows(gate), _rows(up)
        kernel.gate_rows_backward[_grid(one, tile)](
            given, one, two, of_gate, of_up, given.stride(0), one.stride(0), two.stride(0),
            one.shape[1], ACTIVATION=activation, TILE=tile, num_warps=num_warps,
        )  # fmt: skip
    return of_gate, of_up


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Return `x` as `[rows, columns]` with no gaps in a row; a view where the strides allow it."""
    flat = x.reshape(-1, x.shape[-1] if x.dim() else 1)
    return flat if flat.stride(1) == 1 or flat.shape[1] == 1 else flat.contiguous()


def _grid(rows: torch.Tensor, tile: int) -> tuple[int, int]:
    return len(rows), -(-rows.shape[1] // tile)


def shipped() -> Iterator[ShippedKernel]:
    """Yield bfloat16 kernels of each activation, and of `silu` in each config."""
    cases = [(name, CONFIGS[0]) for name in ACTIVATIONS]
    cases += [("silu", config) for config in CONFIGS[1:]]
    tensors = dict.fromkeys(("gradient", "gate", "up", "y", "of_gate", "of_up"), "*bf16")
    steps = dict.fromkeys(("gradient_step", "gate_step", "up_step"), "i64")
    for activation, config in cases:
        tile, warps = config["tile"], config["num_warps"]
        for kernel in ("gate_rows", "gate_rows_backward"):
            yield ShippedKernel(
                name=f"{kernel}: {activation}, {tile}, {warps} warps",
                module="neaptide_kernels.gated_unit.kernel",
                kernel=kernel,
                types=tensors | steps | {"columns": "i32"},
                constants={"ACTIVATION": activation, "TILE": tile},
                aligned=(*tensors, *steps, "columns"),
                options={"num_warps": warps},
            )
