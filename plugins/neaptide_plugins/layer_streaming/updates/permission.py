"""Decides whether a backward may add to the gradients of streamed blocks."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from neaptide.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..weights.block import Block


@attrs.define(eq=False)
class Permission:
    """By default every backward is allowed."""

    applies: bool
    """True if gradients are applied in the backward."""
    in_step: bool = True
    """False between steps."""
    in_final_backward: bool = True
    """False outside of the backward that an update belongs to."""

    @contextmanager
    def final(self) -> Iterator[None]:
        """Mark the backward whose gradients make an update."""
        self.in_final_backward = True
        try:
            yield
        finally:
            self.in_final_backward = False

    def reason_against(self, block: Block) -> str | None:
        """Return None, or why a gradient of `block` is refused."""
        if not self.in_step:
            return (
                f"a backward between steps reaches the weights of block {block.name!r}, whose "
                f"gradients belong to trainer.step while it streams; run it inside loss_fn, or use "
                f"torch.autograd.grad for the tensors that you need"
            )
        if self.applies and not self.in_final_backward:
            return (
                f"loss_fn (or a plugin) runs a backward of its own through block {block.name!r}, "
                f"whose gradients would be applied at once; use 'after_backward' instead of "
                f"'in_backward' @ plugins.layer-streaming.update"
            )
        return None

    def check_assigned(self, block: Block) -> None:
        """Raise ModelError if a gradient that the user has set would be dropped."""
        if self.applies:
            msg = (
                f"a gradient of block {block.name!r} was set between steps, and would be dropped; "
                f"set update = 'after_backward' @ plugins.layer-streaming.update"
            )
            raise ModelError(msg)
