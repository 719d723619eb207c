"""Launch the int8 kernels; choose the tile by the size of a group, and list the configs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.counter_random import keys
from neaptide_kernels.shipping import ShippedKernel

from .reference import parameters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from neaptide_kernels.registry import Query

LONGEST = 4096
"""The largest size of a group that one program processes as a whole."""
TILE = 4096
"""Number of elements in a program's tile."""
CONFIGS: tuple[Mapping[str, Any], ...] = (
    {"tile": TILE, "num_warps": 4},
    {"tile": TILE, "num_warps": 8},
    {"tile": 2 * TILE, "num_warps": 8},
    {"tile": TILE // 2, "num_warps": 4},
)


def configs(_: Query) -> Sequence[Mapping[str, Any]]:
    """Return the candidate tile sizes and numbers of warps."""
    return CONFIGS


def quantize(
    x: torch.Tensor,
    group: int,
    affine: bool,
    stochastic: bool,
    seed: int,
    *,
    tile: int = TILE,
    num_warps: int = 4,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run `quantize_int8` in Triton: in one launch, or in two launches for long groups."""
    from . import kernel  # noqa: PLC0415 - it needs Triton

    x = x.contiguous()
    elements, groups = x.numel(), -(-x.numel() // group)
    codes = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    scale = torch.empty(groups, dtype=torch.float32, device=x.device)
    zero = torch.empty(groups, dtype=torch.int8, device=x.device)
    if not elements:
        return codes, scale, zero
    options: dict[str, Any] = {"num_warps": num_warps, "enable_fp_fusion": False}
    first, second = keys(seed)
    if group <= LONGEST:
        width, rows = shape_of_tile(group, tile)
        kernel.quantize_groups[(-(-groups // rows),)](
            x, codes, scale, zero, elements, groups, group, first, second,
            WIDTH=width, ROWS=rows, AFFINE=affine, STOCHASTIC=stochastic, **options,
        )  # fmt: skip
        return codes, scale, zero
    pieces = -(-min(group, elements) // tile)
    low, high = torch.empty(2, groups, pieces, dtype=torch.float32, device=x.device)
    kernel.extremes[(groups * pieces,)](
        x, low, high, elements, group, pieces, WIDTH=tile, **options
    )
    scale, inverse, zeros = parameters(low.amin(1), high.amax(1), affine=affine)
    kernel.encode_pieces[(groups * pieces,)](
        x, codes, inverse, zeros, elements, group, pieces, first, second,
        WIDTH=tile, AFFINE=affine, STOCHASTIC=stochastic, **options,
    )  # fmt: skip
    return codes, scale, zeros.to(torch.int8)


def dequantize(
    codes: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None,
    group: int,
    dtype: torch.dtype,
    *,
    tile: int = TILE,
    num_warps: int = 4,
) -> torch.Tensor:
    """Run `dequantize_int8` in Triton, in one launch."""
    from . import kernel  # noqa: PLC0415 - it needs Triton

    codes = codes.contiguous()
    out = torch.empty(codes.shape, dtype=dtype, device=codes.device)
    elements, groups = codes.numel(), len(scale)
    if not elements:
        return out
    width, rows = shape_of_tile(min(group, elements), tile)
    pieces = -(-min(group, elements) // width)
    kernel.decode[(-(-groups // rows) * pieces,)](
        codes, scale.contiguous(), zero if zero is None else zero.contiguous(), out,
        elements, groups, group, pieces,
        WIDTH=width, ROWS=rows, HAS_ZERO=zero is not None, num_warps=num_warps,
    )  # fmt: skip
    return out


def shape_of_tile(group: int, tile: int) -> tuple[int, int]:
    """Return the width (a power of two) and the rows of a tile of about `tile` elements."""
    width = min(tile, 1 << max(0, group - 1).bit_length())
    return width, max(1, tile // width)


def shipped() -> Iterator[ShippedKernel]:
    """Yield each config's launches, for groups of 256 elements and for long groups."""
    sizes = {"elements": "i32", "group": "i32"}
    seeds = {"first_key": "i64", "second_key": "i64"}
    data = {"x": "*bf16", "codes": "*i8"}
    for config in CONFIGS:
        tile, warps = config["tile"], config["num_warps"]
        width, rows = shape_of_tile(256, tile)
        options = {"num_warps": warps, "enable_fp_fusion": False}
        for affine, stochastic in ((False, False), (True, True)):
            kind = f"{'affine' if affine else 'symmetric'}{' stochastic' * stochastic}"
            flags = {"AFFINE": affine, "STOCHASTIC": stochastic}
            yield _shipped(
                "quantize_groups",
                f"{kind}, {rows}x{width}, {warps} warps",
                data | {"scale": "*fp32", "zero": "*i8", "groups": "i32"} | sizes | seeds,
                {"WIDTH": width, "ROWS": rows} | flags,
                options,
            )
            yield _shipped(
                "encode_pieces",
                f"{kind}, {tile}, {warps} warps",
                data | {"inverse": "*fp32", "zero": "*fp32", "pieces": "i32"} | sizes | seeds,
                {"WIDTH": tile} | flags,
                options,
            )
        yield _shipped(
            "extremes",
            f"{tile}, {warps} warps",
            {"x": "*bf16", "low": "*fp32", "high": "*fp32", "pieces": "i32"} | sizes,
            {"WIDTH": tile},
            options,
        )
        yield _shipped(
            "decode",
            f"{rows}x{width}, {warps} warps",
            {"codes": "*i8", "scale": "*fp32", "zero": "*i8", "out": "*bf16"}
            | {"groups": "i32", "pieces": "i32"}
            | sizes,
            {"WIDTH": width, "ROWS": rows, "HAS_ZERO": True},
            {"num_warps": warps},
        )


def _shipped(
    name: str,
    case: str,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
) -> ShippedKernel:
    return ShippedKernel(
        name=f"{name}: {case}",
        module="neaptide_kernels.int8.kernel",
        kernel=name,
        types=types,
        constants=constants,
        aligned=("x", "codes", "out", "elements", "group"),
        options=options,
    )
