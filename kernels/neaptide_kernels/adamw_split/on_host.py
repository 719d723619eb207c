"""Run `adamw_split_step` with the compiled step of `host`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from neaptide_kernels import host_threads
from neaptide_kernels.registry import takes

from . import reference
from .forms import form
from .reference import AdamWSplitStep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide_kernels.registry import Query, Support

BLOCK = 1024
"""Elements of a unit: their roots fit in the first cache."""
_GRADIENTS = frozenset({torch.float32, torch.bfloat16})


def supports(query: Query) -> Support:
    """Return True if the call is on a CPU whose rounding is known, otherwise a reason."""
    reason = host_threads.supports(query)
    if reason is not True:
        return reason
    grads = query["grads"]
    if grads.count and grads.dtype not in {None, *_GRADIENTS}:
        return f"it takes float32 and bfloat16 gradients (they are {grads.dtype})"
    if form(fused=query["fused"]) is None:
        return "torch rounds AdamW on this CPU in a way that it does not know"
    return True


@takes(AdamWSplitStep)
def adamw_split_step(call: AdamWSplitStep) -> None:
    """Run `adamw_split_step` in Numba; the host reads `lr` and `step`."""
    found = form(fused=call.fused)
    assert found is not None, "a call that is not supported is not run"
    constants = [np.float32(number) for number in _constants(call)]
    calls = []
    for row in zip(*call[:5], strict=True):
        if not _alike(row):
            reference.adamw_split_step(*([tensor] for tensor in row), *call[5:])
            continue
        elements = row[0].numel()
        given = (
            *map(_flat, row), *constants, np.float32(-1 if call.maximize else 1),
            elements - elements % found.vector, found.root, found.mode,
        )  # fmt: skip
        calls.append(host_threads.HostCall("adamw_split_step", -(-elements // BLOCK), given))
    host_threads.run(f"{__package__}.host", BLOCK, calls)


def _constants(call: AdamWSplitStep) -> Sequence[float]:
    """Return the numbers of a step in the order of `host`, computed as the reference does."""
    count, decay = call.step.item(), call.weight_decay
    alone: Any = call.lr.item() if call.fused or call.lr.dtype == torch.float64 else call.lr
    kept = float(1 - alone * decay) if decay else 1.0
    size = -float(alone / (1 - call.beta1**count))
    correction = (1 - call.beta2**count) ** 0.5
    share, added = 1 - call.beta1, 1 - call.beta2
    return kept, size, correction, share, call.beta2, added, call.eps


def _alike(row: Sequence[torch.Tensor]) -> bool:
    """Return whether the tensors of a weight have their elements in one order, without gaps."""
    high, _, _, _, gradient = row
    dense = torch.empty_like(high, device="meta").stride() == high.stride()
    return (
        dense
        and gradient.dtype in _GRADIENTS
        and all(tensor.stride() == high.stride() for tensor in row)
    )


def _flat(tensor: torch.Tensor) -> Any:
    plain = tensor.detach().as_strided((tensor.numel(),), (1,))
    return host_threads.array(plain.view(torch.uint16) if plain.dtype == torch.int16 else plain)
