"""A JSON file of timings measured on this machine, by op, dtypes and size."""

from __future__ import annotations

import json
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.errors import NeaptideError
from neaptide.io.folder import replace_file
from neaptide.io.locking import lock
from neaptide.text import one_line
from neaptide_kernels.accelerator import name_of
from neaptide_kernels.places import default_path

from .faults import KernelWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping
    from pathlib import Path

    from .query import Query

_VERSION = 1
__all__ = ["Table", "Timing", "default_path", "key_of"]


@attrs.frozen
class Timing:
    """The time of one provider in one config."""

    provider: str
    version: str
    """Version of the provider when it was timed; timings of another version are ignored."""
    config: Mapping[str, Any]
    seconds: float
    """Median time of one call, in seconds."""

    __repr__ = one_line


class Table:
    """The timings that a process knows: timings read from the file, and timings it measured.

    The file is read at first use.
    """

    def __init__(self, path: Callable[[], Path]) -> None:
        self._path = path
        self._timings: dict[str, tuple[Timing, ...]] | None = None

    def of(self, key: str) -> tuple[Timing, ...]:
        """Return the timings of calls of this key, fastest first."""
        return self._all().get(key, ())

    def note(self, key: str, measured: tuple[Timing, ...]) -> None:
        """Store timings in the file. If this fails, warn and keep the timings only in memory."""
        self._all()[key] = measured
        try:
            merge(self._path(), {key: measured})
        except NeaptideError as error:
            _warn(error, "the timings are used in this process only")

    def keep(self, key: str, measured: tuple[Timing, ...]) -> None:
        """Store timings in the file; NeaptideError if the file cannot be written."""
        merge(self._path(), {key: measured})
        self._all()[key] = measured

    def _all(self) -> dict[str, tuple[Timing, ...]]:
        if self._timings is None:
            try:
                self._timings = read(self._path())
            except NeaptideError as error:
                # Timings only affect speed, so an unreadable file must not end a run.
                self._timings = {}
                _warn(error, "kernels are chosen by priority until then")
        return self._timings


def _warn(error: NeaptideError, consequence: str) -> None:
    warnings.warn(f"{error}; {consequence}", KernelWarning, stacklevel=3)


def key_of(query: Query, timed_by: Container[str]) -> str:
    """Return the key of a query's timings.

    The key does not contain the exact shape, so timings of one batch size also apply to similar
    batch sizes. The key contains a numeric argument only if `timed_by` names this argument.
    """
    options = [
        f"{name}={value}"
        for name, value in query.options
        if name in timed_by or isinstance(value, bool | str | torch.dtype)
    ]
    machine = name_of(query.device)
    parts = (machine, torch.__version__, query.op, *query.dtypes, str(query.bucket), *options)
    return "|".join(parts)


def read(path: Path) -> dict[str, tuple[Timing, ...]]:
    """Return the timings in a file; {} without a file. NeaptideError if the file is unusable."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except OSError as error:
        msg = f"cannot read the kernels' timings in {path}: {error.strerror}"
        raise NeaptideError(msg) from error
    try:
        content = json.loads(text)
        if content["version"] != _VERSION:
            return {}
        return {
            key: tuple(
                Timing(
                    str(one["provider"]), str(one["version"]), one["config"], float(one["seconds"])
                )
                for one in timings
            )
            for key, timings in content["timings"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"the kernels' timings in {path} are damaged; delete the file and tune again"
        raise NeaptideError(msg) from error


def merge(path: Path, measured: Mapping[str, tuple[Timing, ...]]) -> None:
    """Add timings to a file that other processes may write at the same time.

    New timings of a key replace all old timings of this key.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_name(f"{path.name}.lock")):
            timings = {**read(path), **measured}
            content = {
                "version": _VERSION,
                "timings": {
                    key: [attrs.asdict(one) for one in timings[key]] for key in sorted(timings)
                },
            }
            replace_file(path, json.dumps(content, indent=1).encode())
    except OSError as error:
        reason = f"{error.strerror}; set NEAPTIDE_CACHE_DIR elsewhere"
        msg = f"cannot write the kernels' timings to {path}: {reason}"
        raise NeaptideError(msg) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("ab") as file:
        lock(file.fileno(), wait=True)  # without a lock, one of two writers could lose its timings
        yield
