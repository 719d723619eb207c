"""Run `lion_step` with the compiled step of `host`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from neaptide_kernels import host_threads
from neaptide_kernels.adamw_split.forms import lerps_fused
from neaptide_kernels.counter_random import keys
from neaptide_kernels.registry import takes

from .reference import LionStep

if TYPE_CHECKING:
    from neaptide_kernels.registry import Query, Support

BLOCK = 1024
"""Elements of a unit."""


def supports(query: Query) -> Support:
    """Return True if the call is on a CPU whose rounding is known, otherwise a reason."""
    params = query["params"]
    # An empty list is taken for one of tensors.
    taken = {torch.float32, torch.bfloat16} if type(query["seeds"]) is tuple else {torch.float32}
    for name in ("params", "grads", "exp_avg"):
        facts = query[name]
        if facts.count and facts.dtype not in taken:
            return f"it takes float32, and bfloat16 with seeds ({name} are {facts.dtype})"
        if not facts.contiguous:
            return f"{name} are not contiguous"
    reason = host_threads.supports(query)
    if reason is True and params.count and not _is_known(params.dtype):
        return "torch rounds means on this CPU in a way that it does not know"
    return reason


_is_known = cache(lerps_fused)


@takes(LionStep)
def lion_step(call: LionStep) -> None:
    """Run `lion_step` in Numba."""
    kept = 1 - call.lr * call.weight_decay if call.weight_decay else 1.0
    numbers = [np.float32(one) for one in (call.lr, kept, 1 - call.beta1, 1 - call.beta2)]
    calls = []
    for place, row in enumerate(zip(call.params, call.exp_avg, call.grads, strict=True)):
        arrays = [host_threads.array(tensor.detach().view(-1)) for tensor in row]
        drawn = map(np.uint32, keys(call.seeds[place] if call.seeds else 0))
        units = -(-row[0].numel() // BLOCK)
        calls.append(host_threads.HostCall("lion_step", units, (*arrays, *numbers, *drawn)))
    host_threads.run(f"{__package__}.host", BLOCK, calls)
