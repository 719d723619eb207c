"""The op `lion8bit_step` and its providers."""

from __future__ import annotations

import torch

from neaptide_kernels.state_codes.op import CodedOp

from . import reference

_OP = CodedOp(
    name="lion8bit_step",
    summary="Lion over many tensors with its momentum in 8 bits",
    codes={"exp_avg": torch.int8},
    reference=reference.lion8bit_step,
    by_pieces=reference.by_pieces,
    piece=reference.piece,
    kernel="neaptide_kernels.lion8bit.kernel:lion_step",
    operations=18,
    tried=(0.9, 0.99, 1e-2),
)
new_state, shipped = _OP.new_state, _OP.shipped

lion8bit_step = _OP.define()
"""See `reference.lion8bit_step`."""

TRITON = (_OP.triton(),)
"""Providers that the plugin `triton-kernels` adds to a run."""
