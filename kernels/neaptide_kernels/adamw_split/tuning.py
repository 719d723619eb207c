"""Launch AdamW over split masters: a kernel for the step's constants, a kernel for all tensors."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.registry import takes
from neaptide_kernels.shipping import ShippedKernel
from neaptide_kernels.tensor_table import table_of

from .reference import AdamWSplitStep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from neaptide_kernels.registry import Query

CONFIGS: tuple[Mapping[str, Any], ...] = (
    {"chunk": 1024, "num_warps": 4},
    {"chunk": 2048, "num_warps": 8},
    {"chunk": 1024, "num_warps": 8},
    {"chunk": 512, "num_warps": 4},
)


def configs(_: Query) -> Sequence[Mapping[str, Any]]:
    """Return the candidate chunk sizes and numbers of warps."""
    return CONFIGS


@takes(AdamWSplitStep)
def adamw_split_step(call: AdamWSplitStep, *, chunk: int = 1024, num_warps: int = 4) -> None:
    """Run `adamw_split_step` in Triton; the host reads no tensor."""
    if not call.hi:
        return
    from . import kernel  # noqa: PLC0415 - it needs Triton

    table = table_of(call[:5], chunk)
    if not table.chunks:
        return
    constants = torch.empty(7, dtype=torch.float32, device=call.lr.device)
    options = map(bits_of, (call.beta1, call.beta2, call.eps, call.weight_decay))
    kernel.step_constants[(1,)](
        call.lr, call.step, constants, *options, num_warps=1, enable_fp_fusion=False
    )
    kernel.adamw_split[(table.chunks,)](
        table.rows, table.owners, constants,
        GRAD=_triton_dtype(call.grads[0].dtype), MAXIMIZE=call.maximize, CHUNK=chunk,
        num_warps=num_warps, enable_fp_fusion=False,
    )  # fmt: skip


def shipped() -> Iterator[ShippedKernel]:
    """Yield each config's kernels for bfloat16 and for float32 gradients."""
    for config in CONFIGS:
        chunk, warps = config["chunk"], config["num_warps"]
        for dtype in (torch.bfloat16, torch.float32):
            name = str(dtype).removeprefix("torch.")
            yield ShippedKernel(
                name=f"adamw_split: {name} gradients, {chunk}, {warps} warps",
                module="neaptide_kernels.adamw_split.kernel",
                kernel="adamw_split",
                types={"rows": "*i64", "owners": "*i32", "constants": "*fp32"},
                constants={"GRAD": _triton_dtype(dtype), "MAXIMIZE": False, "CHUNK": chunk},
                aligned=("rows", "owners", "constants"),
                options={"num_warps": warps, "enable_fp_fusion": False},
            )
    bits = dict.fromkeys(("beta1_bits", "beta2_bits", "eps_bits", "decay_bits"), "i64")
    for rate in ("fp32", "fp64"):
        yield ShippedKernel(
            name=f"step_constants: {rate} learning rate",
            module="neaptide_kernels.adamw_split.kernel",
            kernel="step_constants",
            types={"lr": f"*{rate}", "step": "*fp32", "out": "*fp32", **bits},
            constants={},
            aligned=("lr", "step", "out"),
            options={"num_warps": 1, "enable_fp_fusion": False},
        )


def bits_of(number: float) -> int:
    """Return the 64 bits of a float64 number as a signed integer."""
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


def _triton_dtype(dtype: torch.dtype) -> Any:
    import triton.language as tl  # noqa: PLC0415 - only where it is installed

    return getattr(tl, str(dtype).removeprefix("torch."))
