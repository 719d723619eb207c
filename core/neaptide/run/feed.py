"""Repeats finite data without end, with its position for checkpoints; moves batches to a device."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.utils._pytree import tree_map_only

from neaptide.api import rng
from neaptide.errors import (
    DataError,
    NeaptideError,
    WrongCheckpointError,
    is_out_of_memory,
    text_of,
)
from neaptide.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterator


def moved(batch: Any, device: torch.device) -> Any:
    """Return the batch with its tensors on `device`. An object with a method `to` moves itself."""
    if hasattr(batch, "to"):
        return batch.to(device)
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), batch)


@attrs.define(eq=False)
class Cursor:
    """The position of a run in data that has no `state_dict`.

    A pass is one iteration over the data. A resumed run restores the random state from the start of
    the pass. Then it iterates over the data again and skips the batches that were already used.
    """

    used: int = 0
    """Batches taken from the current pass."""
    started_with: dict[str, Any] | None = None
    """The random state at the start of the pass."""


class Feed:
    """Iterates over `Data.train` without end. `state_dict` returns the position in the data.

    The iteration raises DataError if the data raises an error, or if a pass over the data yields no
    batch.
    """

    def __init__(self, train: Any, state: dict[str, Any] | None) -> None:
        self._train = train
        self._resumable = hasattr(train, "state_dict") and hasattr(train, "load_state_dict")
        self._cursor = Cursor()
        self._given = 0  # batches that this object has yielded, in all passes
        # Data with a `state_dict` may resume at the end of a pass. Then the first pass is empty.
        self._may_be_empty = state is not None and self._resumable
        if state is None:
            return
        if ("own" in state) != self._resumable:
            msg = "the checkpoint's data position is of another kind of data; use the same source"
            raise WrongCheckpointError(msg)
        if self._resumable:
            try:
                train.load_state_dict(state["own"])
            except Exception as error:
                if _keeps_its_type(error):
                    raise
                msg = f"the data cannot load its position: {_described(error)}; use the same source"
                raise WrongCheckpointError(msg) from error
        else:
            self._cursor = Cursor(**state)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that was taken."""
        if self._resumable:
            return {"own": self._train.state_dict()}
        return attrs.asdict(self._cursor, recurse=False)

    def __iter__(self) -> Iterator[Any]:
        while True:
            taken = 0
            one_pass = guarded(self._train, "training") if self._resumable else self._resumed_pass()
            for batch in one_pass:
                taken += 1
                self._given += 1
                yield batch
            if taken == 0 and self._cursor.used == 0 and not self._may_be_empty:
                raise DataError(self._no_batch())
            self._may_be_empty = False
            self._cursor = Cursor()

    def _no_batch(self) -> str:
        if self._given == 0:
            return "the training data gave no batch; check [data] or the loader (is it used up?)"
        return (
            f"the training data ended after {self._given} batches and gives none when it is "
            f"iterated again (is it a generator?); pass a list or a DataLoader, or lower "
            f"train.steps"
        )

    def _resumed_pass(self) -> Iterator[Any]:
        cursor = self._cursor
        if cursor.started_with is None:
            cursor.started_with = rng.capture()
            yield from self._counted(guarded(self._train, "training"))
            return
        now = rng.capture()
        rng.restore(cursor.started_with)
        batches = guarded(self._train, "training")
        for index in range(cursor.used):
            if next(batches, self) is self:
                msg = (
                    f"the training data ended after {index} batches, but the checkpoint has used "
                    f"{cursor.used}; resume on the same data"
                )
                raise DataError(msg)
        rng.restore(now)
        yield from self._counted(batches)

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self._cursor.used += 1
            yield batch


def guarded(batches: Iterable[Any], kind: str) -> Iterator[Any]:
    """Yield a user's batches; turn an error of the data into a DataError with the batch number.

    `kind` is the use of the batches: `"training"` or `"validation"`.
    """
    if not isinstance(batches, Iterable) and not hasattr(batches, "__getitem__"):
        found = type(batches).__name__
        msg = f"the {kind} data is not iterable (got {found!r}); pass a list or a DataLoader"
        raise DataError(msg)
    try:
        iterator = iter(batches)
    except Exception as error:
        if _keeps_its_type(error):
            raise
        msg = f"the {kind} data raised {_described(error)} before its first batch"
        raise DataError(msg) from error
    return _guarded(iterator, kind)


def _guarded(iterator: Iterator[Any], kind: str) -> Iterator[Any]:
    for index in count():
        try:
            batch = next(iterator)
        except StopIteration:
            return
        except Exception as error:
            if _keeps_its_type(error):
                raise
            msg = f"the {kind} data raised {_described(error)} at batch {index}"
            raise DataError(msg) from error
        yield batch


def _keeps_its_type(error: Exception) -> bool:
    return isinstance(error, NeaptideError) or is_out_of_memory(error)


def _described(error: Exception) -> str:
    """Return an exception in one line: its type, message, file and line."""
    lines = [line.strip() for line in text_of(error).splitlines() if line.strip()]
    # The message of an error in a DataLoader worker is a traceback; its last line is the error.
    said = f": {lines[-1]}" if lines else ""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return visible(f"{type(error).__name__}{said} ({Path(frame.filename).name}:{frame.lineno})")
