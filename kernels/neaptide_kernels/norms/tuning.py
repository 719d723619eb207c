"""Launches of the norms' kernels, with the number of warps by the length of a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neaptide_kernels.shipping import ShippedKernel

from .reference import precise

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 8192
"""Longest row. A longer one does not fit into the registers of a program of the backward."""
_PROGRAMS, _LEAST_ROWS = 264, 4


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    offset: float = 0.0,
    narrow_first: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `rms_norm` in one launch."""
    dtype = x.dtype
    if weight is not None and narrow_first:
        dtype = torch.promote_types(dtype, weight.dtype)
    y, _, rstd = _forward(
        x, weight, None, eps, offset, dtype, centered=False, narrow_first=narrow_first
    )
    return y, rstd


def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run `layer_norm` in one launch."""
    return _forward(
        x, weight, bias, eps, 0.0, x.dtype, centered=True, narrow_first=False
    )  # fmt: skip


def _forward(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    offset: float,
    dtype: torch.dtype,
    *,
    centered: bool,
    narrow_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    from . import kernel  # noqa: PLC0415 - it needs Triton

    flat, columns = rows_of(x), x.shape[-1]
    y = x.new_empty(x.shape, dtype=dtype)
    mean, rstd = (x.new_empty(x.shape[:-1], dtype=precise(x.dtype)) for _ in range(2))
    if len(flat):
        kernel.norm_rows[(len(flat),)](
            flat, _dense(weight), _dense(bias), y, mean, rstd, flat.stride(0), eps, offset,
            COLUMNS=columns, TILE=tile_of(columns), CENTERED=centered, WEIGHT=weight is not None,
            BIAS=bias is not None, NARROW_FIRST=narrow_first, num_warps=warps_of(columns),
        )  # fmt: skip
    return y, mean, rstd


def rms_norm_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    rstd: torch.Tensor,
    offset: float = 0.0,
    narrow_first: bool = False,
    for_weight: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `rms_norm_backward` in one launch, and sum its programs' sums."""
    of_x, of_weight, _ = _backward(
        gradient, x, weight, None, rstd, offset, (for_weight, False),
        narrow_first=narrow_first,
    )  # fmt: skip
    return of_x, of_weight


def layer_norm_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    for_weight: bool = True,
    for_bias: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run `layer_norm_backward` in one launch, and sum its programs' sums."""
    return _backward(
        gradient, x, weight, mean, rstd, 0.0, (for_weight, for_bias), narrow_first=False
    )


def _backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    mean: torch.Tensor | None,
    rstd: torch.Tensor,
    offset: float,
    wanted: tuple[bool, bool],
    *,
    narrow_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    from . import kernel  # noqa: PLC0415 - it needs Triton

    flat, given, columns = rows_of(x), rows_of(gradient), x.shape[-1]
    programs = programs_of(len(flat))
    for_weight, for_bias = (weight is not None and want for want in wanted)
    sums = [
        x.new_empty((programs, columns) if want else 0, dtype=torch.float32)
        for want in (for_weight, for_bias)
    ]
    of_x = x.new_empty(x.shape)
    if programs:
        kernel.norm_rows_backward[(programs,)](
            given, flat, _dense(weight), _dense(mean), _dense(rstd), of_x, *sums,
            given.stride(0), flat.stride(0), len(flat), offset,
            COLUMNS=columns, TILE=tile_of(columns), CENTERED=mean is not None,
            WEIGHT=weight is not None, FOR_WEIGHT=for_weight, FOR_BIAS=for_bias,
            NARROW_FIRST=narrow_first, num_warps=warps_of(columns),
        )  # fmt: skip
    of_weight, of_bias = (
        each.sum(0).to(weight.dtype) if weight is not None and want else x.new_empty(0)
        for each, want in zip(sums, (for_weight, for_bias), strict=True)
    )
    return of_x, of_weight, of_bias


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """Return `x` as `[rows, d]`; a copy only if a row has gaps or the rows' distances differ."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 or flat.shape[1] == 1 else flat.contiguous()


def programs_of(rows: int) -> int:
    """Return the programs of a backward: at most twice the multiprocessors of an H100.

    Each program adds up the sums of its own rows, so the results do not depend on any timing.
    """
    return min(_PROGRAMS, -(-rows // _LEAST_ROWS))


def _dense(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.contiguous()


def tile_of(columns: int) -> int:
    """Return the least power of two that is not below `columns`."""
    return 1 << max(0, columns - 1).bit_length()


def warps_of(columns: int) -> int:
    """Return the warps of a program; a thread processes 8 or 16 elements of a row."""
    tile = tile_of(columns)
    return min(8 if tile < LONGEST else 16, max(1, tile // 256))


def shipped() -> Iterator[ShippedKernel]:
    """Yield bfloat16 kernels of both norms for rows of several lengths."""
    for columns in (256, 1024, 2048, 4096, LONGEST):
        for centered in (False, True):
            yield from _shipped(columns, warps_of(columns), centered=centered)


def _shipped(columns: int, warps: int, *, centered: bool) -> Iterator[ShippedKernel]:
    kind = f"{'LayerNorm' if centered else 'RMSNorm'}, {columns}, {warps} warps"
    tensors = dict.fromkeys(("x", "weight", "y", "bias", "gradient", "of_x"), "*bf16")
    sums = dict.fromkeys(("means", "rstds", "of_weight", "of_bias"), "*fp32")
    numbers = {"x_step": "i64", "gradient_step": "i64", "rows": "i32"} | dict.fromkeys(
        ("eps", "offset"), "fp32"
    )
    common = {"COLUMNS": columns, "TILE": tile_of(columns), "CENTERED": centered, "WEIGHT": True}
    common["NARROW_FIRST"] = not centered
    for kernel, own in (
        ("norm_rows", {"BIAS": centered}),
        ("norm_rows_backward", {"FOR_WEIGHT": True, "FOR_BIAS": centered}),
    ):
        yield ShippedKernel(
            name=f"{kernel}: {kind}",
            module="neaptide_kernels.norms.kernel",
            kernel=kernel,
            types=tensors | sums | numbers,
            constants=common | own,
            aligned=(*tensors, *sums, "x_step", "gradient_step"),
            options={"num_warps": warps},
        )
