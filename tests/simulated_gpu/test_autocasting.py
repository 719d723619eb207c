"""What a plan casts as CUDA does is what PyTorch casts there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from neaptide_toolkit.dry_run.as_cuda.autocasting import as_cuda_casts

HALF = torch.bfloat16
OPERATIONS: dict[str, Any] = {
    **{name: getattr(torch, name) for name in ("exp", "log", "rsqrt", "tan", "cosh", "reciprocal")},
    "pow": lambda one: one.pow(3),
    "pow of a number": lambda one: torch.pow(2.0, one),
    "softplus": functional.softplus,
    "gelu": functional.gelu,
    "layer_norm": lambda one: functional.layer_norm(one, (4,)),
    "rms_norm": lambda one: functional.rms_norm(one, (4,)),
    "group_norm": lambda one: functional.group_norm(one, 2),
    "softmax": lambda one: one.softmax(-1),
    "log_softmax": lambda one: one.log_softmax(-1),
    "sum": lambda one: one.sum(),
    "mean": lambda one: one.mean(),
    "cumsum": lambda one: one.cumsum(0),
    "prod": lambda one: one.prod(),
    "norm": torch.linalg.vector_norm,
    "logsumexp": lambda one: one.logsumexp(0),
    "mse_loss": lambda one: functional.mse_loss(one, one),
    "l1_loss": lambda one: functional.l1_loss(one, one),
    "cross_entropy": lambda one: functional.cross_entropy(one, one.new_zeros(4, dtype=torch.long)),
    "with_logits": lambda one: functional.binary_cross_entropy_with_logits(one, one),
    "linear": lambda one: functional.linear(one.float(), one.float()),
    "matmul": lambda one: one.float() @ one,
    "mv": lambda one: one.float().mv(one[0].float()),
    "einsum": lambda one: torch.einsum("ij,jk->ik", one.float(), one.float()),
    "conv1d": lambda one: functional.conv1d(one[None].float(), one[:, :, None].float()),
    "add": lambda one: one + one,
    "cat": lambda one: torch.cat([one, one.float()]),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, HALF, torch.float64])
def test_a_result_has_the_dtype_that_cuda_gives(name: str, dtype: torch.dtype) -> None:
    values, run = torch.full((4, 4), 0.5, dtype=dtype), OPERATIONS[name]
    with torch.autocast("cuda", HALF):
        expected = told(run, values.cuda())
    with as_cuda_casts(), torch.autocast("cpu", HALF):
        assert told(run, values) == expected


def told(run: Any, values: torch.Tensor) -> str:
    try:
        return str(run(values).dtype)
    except RuntimeError:
        return "refused"
