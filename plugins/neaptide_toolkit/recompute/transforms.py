"""Refuses the transforms of `torch.func` where they would run through a block."""

from __future__ import annotations

import torch

from neaptide.errors import ModelError


def check_no_transform(block: str, plugin: str) -> None:
    """Raise ModelError if a transform such as `torch.func.vmap` or `jvp` runs.

    Under a transform, autograd sees other tensors than the block's own.

    Args:
        block: name of the block that is called.
        plugin: name of the plugin that replaces the block's forward.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:
        msg = (
            f"a transform of torch.func (vmap, grad, jvp, ...) runs through block {block!r}, which "
            f"{plugin} does not support; use torch.autograd.grad, or exclude the block"
        )
        raise ModelError(msg)
