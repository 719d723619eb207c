"""What was measured on this machine, by op, dtypes and size, in a JSON file."""

from __future__ import annotations

import json
import os
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.errors import NeaptideError
from neaptide.io.locking import lock
from neaptide.io.replacing import replace_file
from neaptide.text import one_line

from .faults import KernelWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping

    from .query import Query

_VERSION = 1


@attrs.frozen
class Timing:
    """One way to run an op, and how long it took."""

    provider: str
    version: str
    """The provider's; a timing of another one counts no longer."""
    config: Mapping[str, Any]
    seconds: float
    """Median of the repetitions."""

    __repr__ = one_line


class Table:
    """The timings of a process: those of the file, read when first looked for, and its own."""

    def __init__(self, path: Callable[[], Path]) -> None:
        self._path = path
        self._timings: dict[str, tuple[Timing, ...]] | None = None

    def __contains__(self, key: str) -> bool:
        """Return whether calls of this key were measured."""
        return key in self._all()

    def of(self, key: str) -> tuple[Timing, ...]:
        """Return what was measured for calls of this key, fastest first."""
        return self._all().get(key, ())

    def note(self, key: str, measured: tuple[Timing, ...]) -> None:
        """Keep timings, in this process alone where the file cannot be written; warns then."""
        self._all()[key] = measured
        try:
            merge(self._path(), {key: measured})
        except NeaptideError as error:
            _warn(error, "what was measured serves this process alone")

    def keep(self, key: str, measured: tuple[Timing, ...]) -> None:
        """Keep timings in the file; NeaptideError where that is not possible."""
        merge(self._path(), {key: measured})
        self._all()[key] = measured

    def _all(self) -> dict[str, tuple[Timing, ...]]:
        if self._timings is None:
            try:
                self._timings = read(self._path())
            except NeaptideError as error:
                # They only say what is fast: no run ends for them.
                self._timings = {}
                _warn(error, "priorities choose the kernels until then")
        return self._timings


def _warn(error: NeaptideError, consequence: str) -> None:
    warnings.warn(f"{error}; {consequence}", KernelWarning, stacklevel=3)


def default_path() -> Path:
    """Return where timings are kept: `$NEAPTIDE_CACHE_DIR`, else the user's cache directory.

    NeaptideError where there is neither.
    """
    own = os.environ.get("NEAPTIDE_CACHE_DIR")
    if own:
        return Path(own) / "kernels.json"
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "neaptide" / "kernels.json"
    except RuntimeError as error:
        msg = "no home directory to keep the kernels' timings in; set NEAPTIDE_CACHE_DIR"
        raise NeaptideError(msg) from error


def key_of(query: Query, timed_by: Container[str]) -> str:
    """Return under what a query's timings are kept.

    The exact shape is not in it: a table of one batch size must serve the next. Of the arguments
    that are numbers only those in `timed_by` are.
    """
    machine = torch.cuda.get_device_name() if query.device == "cuda" else "cpu"
    options = [
        f"{name}={value}"
        for name, value in query.options
        if name in timed_by or isinstance(value, bool | str | torch.dtype)
    ]
    parts = (machine, torch.__version__, query.op, *query.dtypes, str(query.bucket), *options)
    return "|".join(parts)


def read(path: Path) -> dict[str, tuple[Timing, ...]]:
    """Return what a file holds, nothing where there is none; NeaptideError where it is damaged."""
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
    """Add timings to a file that other processes may be writing at the same time.

    A key's timings are replaced as a whole, the last writer's standing.
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
        msg = f"cannot write the kernels' timings to {path}: {error.strerror}"
        raise NeaptideError(msg) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("ab") as file:
        lock(file, wait=True)  # without locks, what two write at once may be one's alone
        yield
