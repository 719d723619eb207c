"""Splits a block's arguments into micro-batches, and joins the results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.errors import ModelError

from .tensors import replaced

if TYPE_CHECKING:
    from collections.abc import Sequence


@attrs.frozen
class Batch:
    """A batch of samples along dim 0.

    The batch is split into `count` pieces whose sizes differ by at most one.
    """

    size: int
    count: int

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor], pieces: int) -> Batch | None:
        """Return the batch of the first tensor that requires grad, else of the first tensor.

        0-dim tensors are ignored. The result is None if all tensors are 0-dim, or if the batch is
        empty.
        """
        sized = [tensor for tensor in tensors if tensor.ndim > 0]
        first = next((tensor for tensor in sized if tensor.requires_grad), None)
        chosen = first if first is not None else next(iter(sized), None)
        if chosen is None or chosen.shape[0] == 0:
            return None
        size = int(chosen.shape[0])
        return cls(size, min(pieces, size))

    @property
    def is_equal(self) -> bool:
        """Whether all pieces have the same size."""
        return self.size % self.count == 0

    def bounds(self, piece: int) -> tuple[int, int]:
        """Return, for a piece, the index of the first sample and the number of samples."""
        start = piece * self.size // self.count
        return start, (piece + 1) * self.size // self.count - start

    def piece(self, tensors: Sequence[torch.Tensor], piece: int) -> list[torch.Tensor]:
        """Return the tensors of one piece; only tensors whose dim 0 is the batch are cut."""
        start, length = self.bounds(piece)
        return [
            tensor.narrow(0, start, length)
            if tensor.ndim > 0 and tensor.shape[0] == self.size
            else tensor
            for tensor in tensors
        ]


def joined(
    name: str, result: Any, pieces: Sequence[list[torch.Tensor]], batch: Batch
) -> tuple[Any, list[torch.Tensor]]:
    """Join the tensors of the pieces, and return the whole batch's result and tensors.

    `result` is the first piece's. Raises ModelError if a tensor of a piece does not have the
    piece's samples along dim 0.
    """
    first = pieces[0]
    if any(len(tensors) != len(first) for tensors in pieces):
        msg = (
            f"block {name!r} returned different numbers of tensors for its micro-batches; set "
            f"micro_batches = 1, or exclude the block"
        )
        raise ModelError(msg)
    whole = []
    for index, tensor in enumerate(first):
        parts = [tensors[index] for tensors in pieces]
        for piece, part in enumerate(parts):
            if part.ndim == 0 or part.shape[0] != batch.bounds(piece)[1]:
                msg = (
                    f"block {name!r} returns a tensor of shape {list(tensor.shape)}, which cannot "
                    f"be joined from micro-batches: its dim 0 is not the {batch.bounds(piece)[1]} "
                    f"samples of one; set micro_batches = 1, or exclude the block"
                )
                raise ModelError(msg)
        with torch.enable_grad():  # a graph without saved tensors: it tells what needs a gradient
            whole.append(torch.cat(parts))
    others = {id(old): new for old, new in zip(first, whole, strict=True)}
    return replaced(result, others), whole
