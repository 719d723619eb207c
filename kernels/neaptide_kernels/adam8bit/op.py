"""The op `adam8bit_step` and its providers."""

from __future__ import annotations

import torch

from neaptide_kernels.state_codes.op import CodedOp

from . import reference

_OP = CodedOp(
    name="adam8bit_step",
    summary="AdamW over many tensors with both moments in 8 bits",
    codes={"exp_avg": torch.int8, "exp_avg_sq": torch.uint8},
    reference=reference.adam8bit_step,
    by_pieces=reference.by_pieces,
    piece=reference.piece,
    kernel="neaptide_kernels.adam8bit.kernel:adam_step",
    operations=30,
    tried=(0.9, 0.999, 1e-8, 1e-2),
)
new_state, shipped = _OP.new_state, _OP.shipped

adam8bit_step = _OP.define()
"""See `reference.adam8bit_step`."""

TRITON = (_OP.triton(),)
"""Providers that the plugin `triton-kernels` adds to a run."""
