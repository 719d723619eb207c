"""Refuses losses of micro-batches whose weights are unknown, or are in different units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.errors import DataError
from neaptide.tensors import batch_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

IGNORED = -100  # torch's default `ignore_index`
_WAY_OUT = "pass a loss_fn that returns neaptide.Loss(sum of the losses, number of targets)"


@attrs.define
class Units:
    """Knows the unit in which the losses of the present update are weighed: targets or samples."""

    _counted: bool | None = None
    """None after a resume."""
    _first: list[torch.Tensor] | None = None
    """The targets of the update's first micro-batch, if its loss is weighed by samples."""

    def check(
        self, micro_batches: Sequence[Any], place: int, pieces: int, *, is_counted: bool
    ) -> None:
        """Raise DataError if the losses of an update cannot be weighed.

        Args:
            micro_batches: those of the present step.
            place: the place of the micro-batch whose loss is known now.
            pieces: number of micro-batches that the update has so far, in all its steps.
            is_counted: whether this loss is weighed by its targets.
        """
        if not pieces:
            self._counted = is_counted
            self._first = None if is_counted else targets(micro_batches[place])
        elif self._counted not in (None, is_counted):
            msg = (
                f"the targets of some micro-batches are counted, and of others unknown, so that "
                f"their weights are in different units; {_WAY_OUT}"
            )
            raise DataError(msg)
        if place == 0 and not is_counted and (pieces or len(micro_batches) > 1):
            earlier = [self._first] if pieces and self._first else []
            _require_equal_shares([*earlier, *micro_batches])

    def unlike(self, batch: Any, place: int, *, is_counted: bool) -> str:
        """Return why this batch cannot be weighed with the `place` before it; "" if it can."""
        try:
            self.check([batch], 0, place, is_counted=is_counted)
        except DataError as error:
            return str(error)
        return ""


def targets(batch: Any) -> list[torch.Tensor]:
    """Return the int64 tensors of a batch."""
    return [tensor for tensor in batch_tensors(batch) if tensor.dtype == torch.int64]


def _require_equal_shares(batches: list[Any]) -> None:
    """Raise DataError unless each batch has, and ignores, as many targets a sample."""
    found = [targets(batch) for batch in batches]
    flat = [tensor.reshape(-1) for each in found for tensor in each]
    apart = len({tensor.device for tensor in flat}) != 1 or not sum(map(torch.numel, flat))
    ignores = apart or int(torch.cat(flat).min()) <= IGNORED  # if not, none is ignored
    if not ignores and len({tuple([each.shape for each in some]) for some in found}) == 1:
        return  # nearly always
    if len({tuple(_shares(each, ignores=ignores)) for each in found}) > 1:
        msg = (
            f"the loss is a mean, and the batches have or ignore ({IGNORED}) different "
            f"numbers of targets a sample, so that their weights are unknown; {_WAY_OUT}"
        )
        raise DataError(msg)


def _shares(found: list[torch.Tensor], *, ignores: bool) -> Iterator[float]:
    for tensor in found:
        for first in (0, 1) if ignores else ():  # a causal model does not predict the first
            yield int((tensor == IGNORED)[..., first:].sum()) / max(1, tensor.shape[0])
        yield tensor.numel() / max(1, tensor.shape[0])
