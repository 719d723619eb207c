"""The providers of the norms: plain torch, and Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neaptide_kernels.registry import KERNELS, Provider
from neaptide_kernels.support import no_triton, triton_version

from . import eager, layer_op, rms_op, tuning

if TYPE_CHECKING:
    from neaptide_kernels.registry import Query, Support

_OPS = (
    rms_op.rms_norm,
    rms_op.rms_norm_backward,
    layer_op.layer_norm,
    layer_op.layer_norm_backward,
)


def _supports(query: Query) -> Support:
    reason = no_triton(query)
    if reason:
        return reason
    for _, facts in query.tensors:
        if facts is not None and facts.dtype == torch.float64:
            return "float64 is left to torch"
    if query["x"].shape[-1] > tuning.LONGEST:
        return f"rows of more than {tuning.LONGEST} elements are left to torch"
    return True


def _sums_bytes(query: Query) -> int:
    """Count the bytes of the programs' sums."""
    if "gradient" not in dict(query.tensors) or query["weight"] is None:
        return 0
    width = query["x"].shape[-1]
    wanted = query["for_weight"] + dict(query.options).get("for_bias", False)
    return int(wanted * tuning.programs_of(query["x"].elements // width) * width * 4)


TORCH = tuple(
    Provider(
        op=op.spec.name, name="torch", run=getattr(eager, op.spec.name), plain=True, priority=5
    )
    for op in _OPS
)
for _provider in TORCH:
    KERNELS.add(_provider)

TRITON = tuple(
    Provider(
        op=op.spec.name,
        name="triton",
        run=getattr(tuning, op.spec.name),
        supports=_supports,
        priority=10,
        version=f"{triton_version()}/1",
        workspace_bytes=_sums_bytes,
    )
    for op in _OPS
)
"""Providers that the plugin `triton-kernels` adds to a run."""
