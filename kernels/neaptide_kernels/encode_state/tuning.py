"""Launches of the state encoder's kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neaptide_kernels.shipping import ShippedKernel

from .features import FEATURES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from neaptide_kernels.registry import Query

CONFIGS: tuple[Mapping[str, Any], ...] = ({"num_warps": 4}, {"num_warps": 2}, {"num_warps": 8})


def configs(_: Query) -> Sequence[Mapping[str, Any]]:
    """Return the candidate numbers of warps."""
    return CONFIGS


def encode_state(*given: torch.Tensor, num_warps: int = 4) -> torch.Tensor:
    """Run `encode_state` in one launch with one program per run."""
    from . import kernel  # noqa: PLC0415 - it needs Triton

    losses = given[0]
    out = losses.new_empty(*losses.shape[:-1], len(FEATURES))
    runs = losses[..., 0].numel()
    if runs:
        kernel.encode[(runs,)](
            *(tensor.contiguous() for tensor in given),
            out,
            num_warps=num_warps,
            enable_fp_fusion=False,
        )
    return out


def shipped() -> Iterator[ShippedKernel]:
    """Yield one kernel launch per config."""
    rings, counts = ("losses", "norms", "seconds"), "_seen"
    types = dict.fromkeys((*rings, "extras", "out"), "*fp32")
    types |= {ring + counts: "*i64" for ring in rings}
    for config in CONFIGS:
        yield ShippedKernel(
            name=f"encode: {config['num_warps']} warps",
            module="neaptide_kernels.encode_state.kernel",
            kernel="encode",
            types=types,
            constants={},
            aligned=tuple(types),
            options={**config, "enable_fp_fusion": False},
        )
