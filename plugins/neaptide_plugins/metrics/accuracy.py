"""The share of targets that have the largest logit. Knows nothing of Neaptide's hooks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.nn.functional import cross_entropy

from neaptide import DataError
from neaptide.targets import IGNORED, targets

if TYPE_CHECKING:
    from collections.abc import Iterator

_MUCH = 8
"""So many times as near must the best of two cross-entropies be to the loss."""
_WHERE = "plugins.metrics"


@attrs.frozen
class Alignment:
    """Which int64 tensor of a batch has the targets, and which logits belong to them."""

    place: int
    """The place among the tensors of `_candidates`."""
    shift: int
    """Number of positions between logits and their targets."""

    def pairs(self, logits: torch.Tensor, batch: Any, key: str | None) -> Any:
        """Return logits and targets of equal length; DataError if the shapes do not fit."""
        found = [*_candidates(batch, key)]
        if self.place >= len(found):
            msg = f"a batch has {len(found)} tensors of targets, an earlier one more @ {_WHERE}"
            raise DataError(msg)
        pair = _shifted(logits, found[self.place], self.shift)
        if pair is None:
            shapes = f"{[*logits.shape]} and {[*found[self.place].shape]}"
            msg = (
                f"accuracy needs logits with one more dimension than the targets, for the classes "
                f"(got {shapes}) @ {_WHERE}.compute"
            )
            raise DataError(msg)
        return pair


def correct_of(logits: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of right predictions, and that of targets that are not -100."""
    counted = wanted != IGNORED
    return ((logits.argmax(-1) == wanted) & counted).sum(), counted.sum()


def align(
    logits: torch.Tensor,
    batch: Any,
    loss: torch.Tensor,
    *,
    key: str | None,
    shift: int | None,
) -> Alignment | None:
    """Return the alignment that `loss`, a mean, tells; None if the batch has no target.

    If there are several, it is the one whose mean cross-entropy is the loss. DataError if none is,
    or if more than one may be.
    """
    tried = [
        Alignment(place, by)
        for place, tensor in enumerate(_candidates(batch, key))
        for by in ((0, 1) if shift is None else (shift,))
        if _shifted(logits, tensor, by) is not None
    ]
    if not tried:
        have = [[*tensor.shape] for tensor in _candidates(batch, key)]
        msg = (
            f"accuracy needs int64 targets of the shape of the logits without their classes (got "
            f"{[*logits.shape]} and targets {have}); name them @ {_WHERE}.targets"
        )
        raise DataError(msg)
    if len(tried) == 1:
        return tried[0]
    value = float(loss)
    means = {one: _mean(*one.pairs(logits, batch, key)) for one in tried}
    known = {one: abs(mean - value) for one, mean in means.items() if math.isfinite(mean)}
    if not known and all(not bool((t != IGNORED).any()) for t in _candidates(batch, key)):
        return None
    order = sorted(known, key=lambda one: known[one])
    coarser = min(loss.dtype, logits.dtype, key=lambda dtype: dtype.itemsize)
    if order and known[order[0]] <= 16 * torch.finfo(coarser).eps * abs(value):
        least = max(known[order[0]], torch.finfo(torch.float32).eps * abs(value))
        if len(order) == 1 or known[order[1]] > _MUCH * least:
            return order[0]
    msg = (
        f"accuracy cannot tell from the loss ({value:.6g}) which targets belong to which logits; "
        f"set targets and shift @ {_WHERE}"
    )
    raise DataError(msg)


def _candidates(batch: Any, key: str | None) -> Iterator[torch.Tensor]:
    """Yield the tensors that may be the targets."""
    if key is not None or (isinstance(batch, Mapping) and "labels" in batch):
        name = key or "labels"
        found = batch.get(name) if isinstance(batch, Mapping) else None
        if not isinstance(found, torch.Tensor):
            have = [*batch] if isinstance(batch, Mapping) else type(batch).__name__
            msg = f"the batch has no tensor {name!r} (got {have}) @ {_WHERE}.targets"
            raise DataError(msg)
        yield found
    else:
        yield from targets(batch)


def _shifted(logits: torch.Tensor, wanted: torch.Tensor, shift: int) -> Any:
    """Return logits `[..., classes]` and their targets; None if the shapes do not fit."""
    wanted = wanted.to(logits.device)
    if shift and wanted.ndim > 1:
        if logits.shape[:-1] == wanted[..., 1:].shape:  # the model did not get the last token
            return logits, wanted[..., 1:]
        if logits.shape[:-1] == wanted.shape:
            return logits[..., :-1, :], wanted[..., 1:]
        return None
    if not shift and logits.shape[:-1] == wanted.shape:
        return logits, wanted
    if not shift and logits.ndim > 2 and logits.shape[:1] + logits.shape[2:] == wanted.shape:  # noqa: PLR2004
        return logits.movedim(1, -1), wanted  # images: the classes are in dim 1
    return None


def _mean(logits: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the mean cross-entropy, sample by sample, as all in float32 may be much memory."""
    if bool((wanted >= logits.shape[-1]).any()):
        return math.nan  # no classes
    total, count = 0.0, int((wanted != IGNORED).sum())
    for one, its in zip(logits, wanted, strict=True):
        rows = one.reshape(-1, logits.shape[-1]).float()
        total += float(cross_entropy(rows, its.reshape(-1), reduction="sum"))
    return total / count if count else math.nan
