"""Tells whether `torch.utils.checkpoint` already checkpoints the code that runs."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import _checkpoint_hook, _recomputation_hook

_HOOKS = (_checkpoint_hook.__qualname__, _recomputation_hook.__qualname__)


def in_torchs_checkpoint() -> bool:
    """Return whether torch's non-reentrant checkpoint takes the tensors that autograd saves now."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and hooks[0].__qualname__.startswith(_HOOKS)
