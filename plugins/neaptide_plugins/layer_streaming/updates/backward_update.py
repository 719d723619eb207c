"""Updates inside the backward: checks, clips and applies a block's gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from .clipping import add_squares, clip_per_tensor, coefficient, latest_finite, scale

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from torch import nn

    from ..weights.block import Block
    from .blockwise import Updates

Clip = Literal["per_tensor", "lagged", "none"]


class BackwardUpdate:
    """Updates each block whose gradients are complete, and records the updated parameters.

    Args:
        updates: runs the optimizer's step for a block.
        device: the device of the gradients.
        clip: how to clip. `lagged` uses the norm of all gradients in the previous update. The first
            update has no such norm; it is clipped per tensor.
        max_norm: the largest norm after clipping; None if `clip` is `none`.
        check_finite: skip a block that has a gradient with an inf or NaN. The check waits for the
            device.
    """

    def __init__(
        self,
        updates: Updates,
        device: torch.device,
        *,
        clip: Clip,
        max_norm: float | None,
        check_finite: bool,
    ) -> None:
        self.clip = clip
        self.left_out: list[str] = []
        """Names of the blocks that were skipped in this update."""
        self.stepped: set[nn.Parameter] = set()
        """Parameters that were changed in this update."""
        self._updates = updates
        self._max_norm = max_norm
        self._check_finite = check_finite
        self._squares = torch.zeros((), dtype=torch.float64, device=device)
        self._last_norm: torch.Tensor | None = None

    def prefetch(self, block: Block) -> None:
        """Start to copy a block's state to the device."""
        self._updates.prefetch(block)

    def using(self, block: Block) -> AbstractContextManager[None]:
        """Hold a block's weights on the device."""
        return self._updates.using(block)

    def __call__(self, block: Block, gradients: Sequence[torch.Tensor | None]) -> None:
        """Update a block that is on the device. Skip the block if a gradient is not finite."""
        given = [gradient for gradient in gradients if gradient is not None]
        norm = add_squares(self._squares, given)
        if self._check_finite and not norm.isfinite():
            self.left_out.append(block.name)
            return
        self.clip_gradients(given)
        self._updates.step(block, gradients)
        self.stepped.update(
            parameter
            for parameter, gradient in zip(block.parameters, gradients, strict=True)
            if gradient is not None
        )

    def clip_gradients(self, gradients: list[torch.Tensor]) -> None:
        """Clip gradients of this update in place, as the setting `clip` says."""
        if self._max_norm is None or self.clip == "none":
            return
        if self.clip == "lagged" and self._last_norm is not None:
            scale(gradients, coefficient(self._last_norm, self._max_norm))
        else:
            clip_per_tensor(gradients, self._max_norm)

    def norm(self, rest: torch.Tensor) -> torch.Tensor:
        """Return the norm of all gradients of this update.

        `rest` is the norm of the gradients of parameters that do not stream.
        """
        squares = self._squares + rest.to(self._squares).square()
        return squares.sqrt().to(rest.dtype)

    def finish(self, rest: torch.Tensor | None) -> None:
        """End an update. `rest` is the norm of the gradients of parameters that do not stream.

        Without `rest` there was no whole update, and lagged clipping keeps the norm it has.
        """
        if rest is not None:
            squares = self._squares + rest.to(self._squares).square()
            self._last_norm = latest_finite(self._last_norm, squares)
        self._squares.zero_()
        self.stepped.clear()
        self.left_out = []

    def forget(self) -> None:
        """Forget the last norm, because a rollback has undone its update."""
        self._last_norm = None

    def state_dict(self) -> dict[str, torch.Tensor | None]:
        """Return the norm that lagged clipping uses next: the last finite norm of an update."""
        return {"last_norm": self._last_norm}

    def load_state_dict(self, state: dict[str, torch.Tensor | None]) -> None:
        """Restore the state that `state_dict` returned."""
        norm = state["last_norm"]
        self._last_norm = None if norm is None else norm.to(self._squares)
