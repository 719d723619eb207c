"""The part of a batch that one process computes, and the loss of the whole batch.

A loss of the whole batch is the sum of the loss sums / the sum of the counts, as it is for
micro-batches. Its value is that of all processes, and its gradient is the part of this one: the sum
of the gradients of all processes is the gradient of the whole batch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.errors import DataError
from neaptide.targets import Units
from neaptide_toolkit.ranks.splitting import rows, split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide.api.steps import WeighedLoss


@attrs.frozen(eq=False)
class OwnPart:
    """What one process computes of a batch."""

    batch: Any
    """A view of its samples, in the form of the whole batch."""
    is_counted: bool
    """False for a sample of another process, computed because there are fewer samples than
    processes: its loss and its gradient count zero."""
    others: Sequence[Any]
    """The parts of all processes that have one."""


def part_of(batch: Any, rank: int, size: int) -> OwnPart:
    """Return the samples of process `rank` of `size`. The parts differ by at most one sample.

    Raises:
        DataError: the batch has no tensor with samples along dim 0.
    """
    if not rows(batch):
        msg = (
            f"found no tensor with samples along dim 0 to divide among {size} processes (got "
            f"{type(batch).__name__}); use mappings, lists, tuples or dataclasses of tensors"
        )
        raise DataError(msg)
    parts = split(batch, size)
    return OwnPart(parts[rank % len(parts)], rank < len(parts), parts)


def summed(loss: WeighedLoss, part: OwnPart) -> tuple[torch.Tensor, float, float]:
    """Return the loss sum of this process with its graph, the sum as a number, and its count.

    Raises:
        DataError: the loss is a mean whose weight is not known, because the parts have different
            numbers of targets a sample.
    """
    if not loss.is_counted:
        Units().check(part.others, 0, 0, is_counted=False)
    total = loss.value if loss.is_sum else loss.value * loss.count
    # The mean of no targets is NaN, as of labels that are all ignored: here it counts zero.
    if not part.is_counted or not float(loss.count):
        return total * 0.0, 0.0, 0.0
    return total, float(total.detach()), float(loss.count)


def whole(
    loss: WeighedLoss, own: torch.Tensor, sums: Sequence[float], counts: Sequence[float]
) -> WeighedLoss:
    """Return the loss of the whole batch.

    Args:
        loss: the loss of this process.
        own: its loss sum, 0-dim, with its graph.
        sums: the loss sums of all processes.
        counts: their counts.
    """
    value = own.detach().new_tensor(math.fsum(sums) if all(map(math.isfinite, sums)) else sum(sums))
    if own.requires_grad:
        value = _OfAll.apply(own, value)  # type: ignore[no-untyped-call]  # torch leaves it so
    count: Any = math.fsum(counts)
    if isinstance(loss.count, torch.Tensor):
        count = loss.count.detach().new_tensor(count)
    return attrs.evolve(loss, value=value, count=count, is_sum=True)


class _OfAll(torch.autograd.Function):
    """Has the value of its second argument and the gradient of its first."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, value: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 - torch's
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ARG004 - torch's
        return gradients[0], None
