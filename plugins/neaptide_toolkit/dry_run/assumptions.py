"""What a dry run assumes of values that it does not have, and where code asks for them."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from neaptide.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

_MANY, _SOME, _PATIENCE = 50_000, 1_000, 60.0
"""Reads at one place before the code counts as endless; fewer if they took so many seconds."""
_BELOW = (str(Path(torch.__file__).parent) + os.sep, str(Path(__file__).parent) + os.sep)


class UnplannableError(ModelError):
    """The model needs values that a dry run does not have."""

    exit_code = 2


class Assumptions:
    """Notes what is taken for granted, and refuses code that asks for values without an end."""

    def __init__(self) -> None:
        self._notes: dict[str, None] = {}
        self.restart()

    def restart(self) -> None:
        """Count reads anew: another part of the run begins."""
        self._reads: Counter[Any] = Counter()
        self._since: dict[Any, float] = {}

    def __iter__(self) -> Any:
        """Iterate over the notes, each one line, in the order of the code."""
        return iter(self._notes)

    def note(self, text: str) -> None:
        """Note what is assumed at the place that is running, unless this is Neaptide's own code."""
        frame = _caller()
        if not str(frame.f_globals.get("__name__")).startswith("neaptide"):
            self._notes.setdefault(f"{text} @ {_named(frame)}")

    def read(self, value: Any) -> None:
        """Note that code reads `value` for one that is unknown.

        Raises:
            UnplannableError: the same place reads again and again.
        """
        frame = _caller()
        place = frame.f_code, frame.f_lineno
        self._reads[place] += 1
        count, now = self._reads[place], time.monotonic()
        if count == 1:
            self._since[place] = now
            self.note(f"{value} is read from values that a plan does not have")
        elif count >= _MANY or (count >= _SOME and now - self._since[place] > _PATIENCE):
            msg = (
                f"code read {value} from values that a plan does not have {count} times; a loop "
                f"that waits for a value has no end here, so bound it by a count @ {_named(frame)}"
            )
            raise UnplannableError(msg)


def place() -> str:
    """Return the file and line of the code that runs, above PyTorch and the dry run."""
    return _named(_caller())


def refuse_layouts(tensors: Iterable[torch.Tensor], operation: Any) -> None:
    """Raise UnplannableError if a tensor is sparse, nested or of another layout without strides."""
    for one in tensors:
        if one.layout is not torch.strided or one.is_nested:
            kind = "nested" if one.is_nested else str(one.layout).removeprefix("torch.")
            msg = (
                f"{operation} has a {kind} tensor, whose memory depends on values; such a model "
                f"cannot be planned, dense tensors can @ {place()}"
            )
            raise UnplannableError(msg)


def _caller() -> FrameType:
    frame = first = sys._getframe(1)  # noqa: SLF001 - `inspect` reads source files
    while frame.f_code.co_filename.startswith(_BELOW):
        if frame.f_back is None:
            return first
        frame = frame.f_back
    return frame


def _named(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    whole, _, inside = str(path).rpartition(f"site-packages{os.sep}")
    if whole:
        return f"{inside}:{frame.f_lineno}"
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{frame.f_lineno}"
