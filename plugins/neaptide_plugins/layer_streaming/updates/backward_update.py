"""What happens to a block's gradients inside the backward: check, clip, step."""

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
    """Steps each block whose gradients are finished, and remembers what became of it.

    Args:
        updates: makes the steps.
        clip: `lagged` scales by the norm of the update before, the first one per tensor.
        max_norm: what to clip to; None with `none`.
        check_finite: leave out a block with a gradient that is inf or nan; waits for the device.
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
        """Names of blocks that were not stepped in this update."""
        self.stepped: set[nn.Parameter] = set()
        """What was, in this update."""
        self._updates = updates
        self._max_norm = max_norm
        self._check_finite = check_finite
        self._squares = torch.zeros((), dtype=torch.float64, device=device)
        self._last_norm: torch.Tensor | None = None

    def prefetch(self, block: Block) -> None:
        """Start to bring what the step of a block needs."""
        self._updates.prefetch(block)

    def using(self, block: Block) -> AbstractContextManager[None]:
        """Have a block on the device meanwhile."""
        return self._updates.using(block)

    def __call__(self, block: Block, gradients: Sequence[torch.Tensor | None]) -> None:
        """Step a block that is in use on the device."""
        given = [gradient for gradient in gradients if gradient is not None]
        finite = add_squares(self._squares, given)
        if self._check_finite and not finite:
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
        """Clip gradients of this update in place, as the mode says."""
        if self._max_norm is None or self.clip == "none":
            return
        if self.clip == "lagged" and self._last_norm is not None:
            scale(gradients, coefficient(self._last_norm, self._max_norm))
        else:
            clip_per_tensor(gradients, self._max_norm)

    def norm(self, rest: torch.Tensor) -> torch.Tensor:
        """Return the norm of all gradients of this update, `rest` being that of other ones."""
        squares = self._squares + rest.to(self._squares).square()
        return squares.sqrt().to(rest.dtype)

    def finish(self, rest: torch.Tensor) -> None:
        """End an update whose other gradients had the norm `rest`."""
        squares = self._squares + rest.to(self._squares).square()
        self._last_norm = latest_finite(self._last_norm, squares)
        self._squares.zero_()
        self.stepped.clear()
        self.left_out = []

    def state_dict(self) -> dict[str, torch.Tensor | None]:
        """Return the norm that lagged clipping goes by."""
        return {"last_norm": self._last_norm}

    def load_state_dict(self, state: dict[str, torch.Tensor | None]) -> None:
        """Take it back."""
        norm = state["last_norm"]
        self._last_norm = None if norm is None else norm.to(self._squares)
