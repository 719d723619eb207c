"""Finds out whether a transform of `torch.func` or a forward-mode derivative runs."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

from neaptide.errors import ModelError


def is_transformed() -> bool:
    """Return whether a transform such as `torch.func.vmap` or `jvp` runs."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def other_derivative() -> str:
    """Return what runs that an op with a backward only has no rule for; empty if nothing does.

    While torch's compiler traces, which cannot ask, nothing is found.
    """
    if torch.compiler.is_compiling():
        return ""
    if is_transformed():
        return "a transform of torch.func"
    return "a forward-mode derivative" if forward_ad._current_level >= 0 else ""


def check_no_transform(block: str, plugin: str) -> None:
    """Raise ModelError if a transform such as `torch.func.vmap` or `jvp` runs.

    Under a transform, autograd sees other tensors than the block's own.

    Args:
        block: name of the block that is called.
        plugin: name of the plugin that replaces the block's forward.
    """
    if is_transformed():
        msg = (
            f"a transform of torch.func (vmap, grad, jvp, ...) runs through block {block!r}, which "
            f"{plugin} does not support; use torch.autograd.grad, or exclude the block"
        )
        raise ModelError(msg)
