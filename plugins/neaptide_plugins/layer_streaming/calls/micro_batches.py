"""Splitting what a block is called with into micro-batches, and joining what it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from .tensors import replaced

if TYPE_CHECKING:
    from collections.abc import Sequence


@attrs.frozen
class Batch:
    """Samples along dim 0 of a block's tensors, in `count` pieces that differ by one at most."""

    size: int
    count: int

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor], pieces: int) -> Batch | None:
        """Return the batch of the first tensor with gradients, or else of the first one at all."""
        sized = [tensor for tensor in tensors if tensor.ndim > 0]
        first = next((tensor for tensor in sized if tensor.requires_grad), None)
        chosen = first if first is not None else next(iter(sized), None)
        if chosen is None or chosen.shape[0] == 0:
            return None
        size = int(chosen.shape[0])
        return cls(size, min(pieces, size))

    def bounds(self, piece: int) -> tuple[int, int]:
        """Return the first sample of a piece and its number of samples."""
        start = piece * self.size // self.count
        return start, (piece + 1) * self.size // self.count - start

    def piece(self, tensors: Sequence[torch.Tensor], piece: int) -> list[torch.Tensor]:
        """Return the tensors, those that have the samples along dim 0 narrowed to the piece."""
        start, length = self.bounds(piece)
        return [
            tensor.narrow(0, start, length)
            if tensor.ndim > 0 and tensor.shape[0] == self.size
            else tensor
            for tensor in tensors
        ]


def joined(
    name: str, results: Sequence[tuple[Any, list[torch.Tensor]]], batch: Batch
) -> tuple[Any, list[torch.Tensor]]:
    """Return the result and the tensors of a whole batch from those of its pieces.

    Raises RuntimeError where the pieces' tensors do not have their samples along dim 0.
    """
    (result, first), counts = results[0], {len(tensors) for _, tensors in results}
    if len(counts) > 1:
        msg = f"block {name!r} returned another number of tensors for each micro-batch"
        raise RuntimeError(msg)
    whole = []
    for index, tensor in enumerate(first):
        parts = [tensors[index] for _, tensors in results]
        for piece, part in enumerate(parts):
            if part.ndim == 0 or part.shape[0] != batch.bounds(piece)[1]:
                msg = (
                    f"block {name!r} returns a tensor of shape {list(tensor.shape)}, which cannot "
                    f"be joined from micro-batches: its dim 0 is not the {batch.bounds(piece)[1]} "
                    f"samples of one; set micro_batches = 1, or exclude the block"
                )
                raise RuntimeError(msg)
        whole.append(torch.cat(parts))
    others = {id(old): new for old, new in zip(first, whole, strict=True)}
    return replaced(result, others), whole
