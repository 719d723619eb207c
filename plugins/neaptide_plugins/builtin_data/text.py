"""Windows of bytes from the Python standard library's sources or from a file."""

from __future__ import annotations

import hashlib
import math
import os
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import torch
from attrs.validators import ge
from torch import Tensor

from .counter import draws
from .stream import EndlessBatches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Installed packages are not part of the standard library, and tests contain much generated text.
LEFT_OUT = frozenset(
    {"__pycache__", "dist-packages", "idle_test", "site-packages", "test", "tests"}
)


def source_files(root: Path) -> list[str]:
    """Return the `.py` files below `root` as sorted relative paths with forward slashes.

    Folders named in `LEFT_OUT` and files that describe one build of Python (`_sysconfigdata…`,
    `config-…/`) are skipped. The other files are the same on every machine.
    """
    names = []
    for folder, folders, files in os.walk(root):
        folders[:] = [
            name for name in folders if name not in LEFT_OUT and not name.startswith("config-")
        ]
        names += [
            Path(folder, name).relative_to(root).as_posix()
            for name in files
            if name.endswith(".py") and not name.startswith("_sysconfigdata")
        ]
    return sorted(names)


def in_validation(name: str, share: float) -> bool:
    """Return whether a file is for validation.

    The result is true if the hash of the name, divided by its maximum, is below `share`.
    """
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def stdlib_bytes(
    validation_share: float = 0.1, *, root: Path | None = None
) -> tuple[Tensor, Tensor]:
    """Return two tensors, uint8 `[N]`: sources for training, and sources for validation.

    The sources are in the folder `root`, by default the standard library of the running Python.
    Each file is completely in one of the two tensors, so no function is split. ValueError if the
    folder has too few sources to split, or no sources.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    names = source_files(root)
    held_out = [name for name in names if in_validation(name, validation_share)]
    if not held_out or len(held_out) == len(names):
        msg = (
            f"python-stdlib needs Python's own .py sources, but {root} has {len(names)} of them, "
            f"{len(held_out)} for validation: use a Python that ships its sources, or "
            "'builtin:text-file'"
        )
        raise ValueError(msg)
    training = sorted(set(names).difference(held_out))
    return _joined(root, training), _joined(root, held_out)


def _joined(root: Path, names: Iterable[str]) -> Tensor:
    text = b"\n".join((root / name).read_bytes() for name in names)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def file_bytes(path: str | Path, validation_share: float = 0.1) -> tuple[Tensor, Tensor]:
    """Return two tensors, uint8 `[N]`: the first bytes and the last bytes of a file.

    The first bytes are for training, and the last bytes are for validation. Both tensors are views
    of one buffer. ValueError if the file cannot be read or is too short to split.
    """
    try:
        content = bytearray(Path(path).stat().st_size)
        with Path(path).open("rb") as file:
            file.readinto(content)
    except OSError as error:
        msg = f"text-file cannot read {str(path)!r}: {error.strerror}; set the data's 'path'"
        raise ValueError(msg) from error
    held_out = round(len(content) * validation_share)
    if not 0 < held_out < len(content):
        msg = (
            f"text-file {str(path)!r} has {len(content)} bytes, too few to hold out a share of "
            f"{validation_share:g}: give a longer text"
        )
        raise ValueError(msg)
    everything = torch.frombuffer(content, dtype=torch.uint8)
    return everything[:-held_out], everything[-held_out:]


def every_window(data: Tensor, context: int) -> Tensor:
    """Return a view of all windows, `[N - context, context + 1]`. ValueError if no window fits."""
    if data.numel() <= context:
        msg = (
            f"the text has {data.numel()} bytes, but one window takes {context + 1} "
            f"(context {context} and the next byte): lower 'context' or give a longer text"
        )
        raise ValueError(msg)
    return data.unfold(0, context + 1, 1)


@attrs.define(eq=False)
class ByteBatches(EndlessBatches):
    """Endless batches of random windows. The seed and the batch's number determine each batch.

    Each batch is `{"tokens": int64 [batch_size, context + 1]}`. Its windows are drawn with
    replacement from `data`, uint8 `[N]`. ValueError if `data` is shorter than one window.
    """

    data: Tensor
    context: int = attrs.field(validator=ge(1))
    batch_size: int = attrs.field(validator=ge(1))
    seed: int
    _windows: Tensor = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._windows = every_window(self.data, self.context)

    def batch(self, index: int) -> dict[str, Tensor]:
        """Return batch number `index`, independent of earlier calls."""
        numbers = draws(self.seed, index, self.batch_size)
        starts = [number % len(self._windows) for number in numbers]
        return {"tokens": self._windows[starts].long()}


@attrs.define(eq=False)
class EvalWindows:
    """Batches of evenly spaced windows. They do not overlap, and are the same in each iteration.

    A window has `context` + 1 bytes of `data`, uint8 `[N]`. There are `count` windows; if
    `data` is too short, there are as many windows as fit. Each batch is
    `{"tokens": int64 [<= batch_size, context + 1]}`.
    ValueError if `data` is shorter than one window.
    """

    data: Tensor
    context: int = attrs.field(validator=ge(1))
    batch_size: int = attrs.field(validator=ge(1))
    count: int = attrs.field(validator=ge(1))
    _windows: Tensor = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        every = every_window(self.data, self.context)
        fitting = min(self.count, self.data.numel() // (self.context + 1))
        self._windows = every[:: self.data.numel() // fitting][:fitting]

    def __len__(self) -> int:
        """Return the number of batches."""
        return math.ceil(len(self._windows) / self.batch_size)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Yield the batches in order."""
        for first in range(0, len(self._windows), self.batch_size):
            yield {"tokens": self._windows[first : first + self.batch_size].long()}
