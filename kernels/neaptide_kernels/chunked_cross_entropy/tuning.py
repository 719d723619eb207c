"""Launch the kernel of the chunked cross-entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.shipping import ShippedKernel

from .chunks import Head, by_chunks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from neaptide_kernels.registry import Query

TILE = 4096
"""Number of logits of a row that a program processes at a time."""
_SHIPPED = 128_256
"""The vocabulary size of kernels compiled without a GPU."""
CONFIGS: tuple[Mapping[str, Any], ...] = (
    {"tile": TILE, "num_warps": 8},
    {"tile": 2 * TILE, "num_warps": 16},
    {"tile": TILE // 2, "num_warps": 4},
)


def configs(_: Query) -> Sequence[Mapping[str, Any]]:
    """Return the candidate tile sizes and numbers of warps."""
    return CONFIGS


def _differentiate(
    logits: torch.Tensor,
    labels: torch.Tensor,
    head: Head,
    with_gradient: bool,
    *,
    tile: int = TILE,
    num_warps: int = 8,
) -> tuple[torch.Tensor, torch.Tensor]:
    from . import kernel  # noqa: PLC0415 - it needs Triton

    logits = logits.contiguous()
    tokens, vocabulary = logits.shape
    losses = torch.empty(tokens, dtype=head.precise, device=logits.device)
    kernel.differentiate_rows[(tokens,)](
        logits, labels, losses, head.ignore_index, head.softcap or 1.0, VOCABULARY=vocabulary,
        TILE=min(tile, 1 << max(0, vocabulary - 1).bit_length()),
        SOFTCAP=head.softcap is not None, WITH_GRADIENT=with_gradient, num_warps=num_warps,
    )  # fmt: skip
    return losses.sum(), logits


chunked_cross_entropy = by_chunks(_differentiate)
"""Run the op with one Triton launch per chunk.

torch computes the matrix products. A chunk needs a single buffer: the logits, in `dtype`.
"""


def shipped() -> Iterator[ShippedKernel]:
    """Yield each config's launches for bfloat16 logits, with and without a softcap."""
    for config in CONFIGS:
        tile, warps = config["tile"], config["num_warps"]
        for softcap, gradient in ((False, True), (True, True), (False, False)):
            kind = f"{'softcap, ' * softcap}{'with' if gradient else 'without'} gradient"
            yield ShippedKernel(
                name=f"differentiate_rows: {kind}, {tile}, {warps} warps",
                module="neaptide_kernels.chunked_cross_entropy.kernel",
                kernel="differentiate_rows",
                types={
                    "logits": "*bf16",
                    "labels": "*i64",
                    "losses": "*fp32",
                    "ignore_index": "i32",
                    "softcap": "fp32",
                },
                constants={
                    "VOCABULARY": _SHIPPED,
                    "TILE": tile,
                    "SOFTCAP": softcap,
                    "WITH_GRADIENT": gradient,
                },
                aligned=("logits", "losses"),
                options={"num_warps": warps},
            )
