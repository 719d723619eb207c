"""Launches of the kernel of RoPE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.shipping import ShippedKernel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from neaptide_kernels.registry import Query

DIMENSIONS = 4
"""Dimensions of `x`: batch, heads and tokens in any order of memory, and the vector."""
WIDEST = 512
"""Longest vector."""
CONFIGS: tuple[Mapping[str, Any], ...] = (
    {"elements": 1024, "num_warps": 4},
    {"elements": 2048, "num_warps": 4},
    {"elements": 512, "num_warps": 2},
)


def configs(_: Query) -> Sequence[Mapping[str, Any]]:
    """Return the candidate numbers of elements of a program, and of warps."""
    return CONFIGS


def rope(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    transposed: bool = False,
    *,
    elements: int = 1024,
    num_warps: int = 4,
) -> torch.Tensor:
    """Run `rope` in one launch."""
    y = torch.empty_like(x)
    if not x.numel():
        return y
    from . import kernel  # noqa: PLC0415 - it needs Triton

    width = cos.shape[-1]
    batch, heads, tokens, whole = x.shape
    tables = (table.expand(batch, heads, tokens, width) for table in (cos, sin))
    steps = [step for each in (x, y, *tables) for step in each.stride()]
    vectors = batch * heads * tokens
    tile = _tile(max(1, width // 2))
    rows = max(1, elements // (2 * tile))
    kernel.turn[(-(-vectors // rows),)](
        x, cos, sin, y, vectors, heads, tokens, *steps,
        WIDTH=width, REST=whole - width, ROWS=rows, HALF_TILE=tile,
        REST_TILE=_tile(max(1, whole - width)), TRANSPOSED=transposed, num_warps=num_warps,
    )  # fmt: skip
    return y


def _tile(columns: int) -> int:
    return 1 << (columns - 1).bit_length()


def shipped() -> Iterator[ShippedKernel]:
    """Yield bfloat16 kernels for vectors of 128, in each config, and for partly turned vectors."""
    cases = [(128, 0, config) for config in CONFIGS] + [(96, 32, CONFIGS[0])]
    tensors = dict.fromkeys(("x", "cos", "sin", "y"), "*bf16")
    steps = [f"{tensor}_{kind}" for tensor in "xyts" for kind in ("batch", "head", "token")]
    for width, rest, config in cases:
        elements, warps = config["elements"], config["num_warps"]
        for transposed in (False, True):
            kind = f"{width} of {width + rest}{', transposed' * transposed}"
            tile = _tile(width // 2)
            yield ShippedKernel(
                name=f"turn: {kind}, {elements}, {warps} warps",
                module="neaptide_kernels.rope.kernel",
                kernel="turn",
                types=tensors | dict.fromkeys(("vectors", "heads", "tokens", *steps), "i32"),
                constants={
                    **dict.fromkeys(("x_step", "y_step", "t_step", "s_step"), 1),
                    "WIDTH": width,
                    "REST": rest,
                    "ROWS": elements // (2 * tile),
                    "HALF_TILE": tile,
                    "REST_TILE": _tile(max(1, rest)),
                    "TRANSPOSED": transposed,
                },
                aligned=(*tensors, *steps),
                options={"num_warps": warps},
            )
