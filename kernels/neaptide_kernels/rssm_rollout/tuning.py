"""Launches of the rollout's kernel: one program for each start of a member."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.registry import takes
from neaptide_kernels.shipping import ShippedKernel

from .reference import RolloutCall

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from neaptide_kernels.registry import Query

CONFIGS: tuple[Mapping[str, Any], ...] = (
    {"tile": 16, "num_warps": 8},
    {"tile": 8, "num_warps": 8},
)
"""For 16-bit numbers; float32 has the last one only, since with the other registers spill."""
SIZES = (256, 32, 32)
"""Of the models of `dynamics-rssm`: deterministic units, groups, categories."""
LARGEST = (512, 64, 64)
"""Largest such sizes of the kernel: a program holds whole rows of weights."""
_TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


def configs(query: Query) -> Sequence[Mapping[str, Any]]:
    """Return the candidate numbers of units computed together, and of warps."""
    return _configs(query["deter"].dtype)


def _configs(dtype: torch.dtype) -> Sequence[Mapping[str, Any]]:
    return CONFIGS if dtype.itemsize == 2 else CONFIGS[-1:]  # noqa: PLR2004 - 16 bits


@takes(RolloutCall)
def rssm_rollout(
    call: RolloutCall, *, tile: int = 8, num_warps: int = 8
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `rssm_rollout` in one launch."""
    members, starts, steps, _ = call.drive.shape
    size, groups = call.deter.shape[2], call.stoch.shape[2]
    deters = call.deter.new_empty(members, starts, steps, size)
    stochs = call.stoch.new_empty(members, starts, steps, groups)
    if deters.numel():
        from . import kernel  # noqa: PLC0415 - it needs Triton

        kernel.roll[(members * starts,)](
            *(each.contiguous() for each in call), deters, stochs, starts, steps,
            **_constants(size, groups, call.head.shape[1] // groups, tile),
            num_warps=num_warps,
        )  # fmt: skip
    return deters, stochs


def _constants(size: int, groups: int, categories: int, tile: int) -> dict[str, int]:
    return {
        "SIZE": size,
        "GROUPS": groups,
        "CATEGORIES": categories,
        "UNITS": _power_of_two(size),
        "ALL_GROUPS": _power_of_two(groups),
        "WIDTH": _power_of_two(categories),
        "TILE": tile,
    }


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def shipped() -> Iterator[ShippedKernel]:
    """Yield the kernel of `dynamics-rssm`'s sizes for each dtype and config."""
    floating = (*(name for name in RolloutCall._fields if name != "stoch"), "deters")
    whole = ("stoch", "stochs")
    for dtype, short in _TYPES.items():
        types = dict.fromkeys(floating, f"*{short}") | dict.fromkeys(whole, "*i64")
        for config in _configs(dtype):
            tile, warps = config["tile"], config["num_warps"]
            yield ShippedKernel(
                name=f"roll: {short}, {tile}, {warps} warps",
                module="neaptide_kernels.rssm_rollout.kernel",
                kernel="roll",
                types=types | {"starts": "i32", "steps": "i32"},
                constants=_constants(*SIZES, tile),
                aligned=(*floating, *whole),
                options={"num_warps": warps},
            )
