"""Print whether steps by Triton, in its interpreter, leave the bits that the reference leaves.

TRITON_INTERPRET=1 python tests/kernels/state_codes/interpreted_steps.py
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from neaptide_kernels import adam8bit, lion8bit
from neaptide_kernels.registry import KERNELS


def stepped(folder: Any, op: Any, provider: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return weights and state after six steps, two of them after a new random start."""
    torch.manual_seed(0)
    params = [torch.randn(2500).to(dtype), torch.randn(30, 40).to(dtype)]
    state = [list(each) for each in zip(*map(folder.new_state, params), strict=True)]
    with KERNELS.using(**{op.spec.name: provider}):
        for count in (1, 2, 3, 63, 64, 65):
            for step in state[-1]:
                step.fill_(count)
            op(params, [torch.randn_like(each) for each in params], *state, torch.tensor(0.01))
    return [*params, *(tensor for tensors in state for tensor in tensors)]


def main() -> None:
    """Try both ops with both dtypes of weights."""
    for folder, op in (
        (adam8bit, adam8bit.adam8bit_step),
        (lion8bit, lion8bit.lion8bit_step),
    ):
        for provider in folder.TRITON:
            KERNELS.add(provider)
        for dtype in (torch.float32, torch.bfloat16):
            pairs = zip(
                stepped(folder, op, "reference", dtype),
                stepped(folder, op, "triton", dtype),
                strict=True,
            )
            same = all(torch.equal(*pair) for pair in pairs)
            sys.stdout.write(f"{op.spec.name} {dtype} {'same' if same else 'other'} bits\n")


if __name__ == "__main__":
    main()
