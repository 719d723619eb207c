"""The run directory: one process locks it, and a crash during a write damages no file."""

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neaptide.api.memory import MemorySample
from neaptide.checkpoint.catalog import checkpoints
from neaptide.config.toml import parse
from neaptide.errors import ConfigError, RunDirectoryError
from neaptide.io.folder import HELD, Folder, resolved
from neaptide.io.locking import FolderLock
from neaptide.io.logging import CONSOLE
from neaptide.plugin import sole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from neaptide.api.records import StepRecord
    from neaptide.config.schema import RunSection

RECORDS_GROUP = "neaptide.records"
"""The group of the entry point that writes the records, and cuts them back at a resume."""
_LINKED = (
    "{} is a symbolic link: a run writes in its own directory only; remove the link, and to keep "
    "checkpoints on another disk set run.checkpoint_dir"
)
_LARGEST_SUMMARY = 1 << 24  # bytes


def checkpoint_root(run: RunSection) -> Path | None:
    """Return the directory of a run's checkpoints; None if the run has no directory."""
    if run.dir is None:
        return None
    return resolved(Path(run.checkpoint_dir or Path(run.dir) / "checkpoints"))


def is_own(checkpoint: Path, run: RunSection) -> bool:
    """Return whether `checkpoint` lies in the directory of the run's checkpoints."""
    return resolved(checkpoint).parent == checkpoint_root(run)


class RunDirectory:
    """Locks a run directory and writes its files.

    If a write fails, for example on a full disk, the data of this write is lost and training
    continues. The first such error logs a warning.

    Args:
        path: the run directory; it may be a link.
        elsewhere: another directory for the checkpoints; it is locked, too.
    """

    def __init__(self, path: Path, elsewhere: Path | None = None) -> None:
        self.path, self._process = resolved(path), os.getpid()
        self._warned = False
        with ExitStack() as opened, _prepared(self.path):
            self._folder = opened.enter_context(closing(Folder(path, make=True)))
            self._locks = [opened.enter_context(closing(FolderLock(self._folder)))]
            self._checkpoints = self.path / "checkpoints"
            if elsewhere is not None:
                with _prepared(resolved(elsewhere), "run.checkpoint_dir"):
                    folder = opened.enter_context(closing(Folder(elsewhere, make=True)))
                    if folder.path != self.path:
                        self._locks.append(opened.enter_context(closing(FolderLock(folder))))
                        HELD[folder.path] = folder
                self._checkpoints = folder.path
            HELD[self.path] = self._folder
            self._folder.clear()
            for name in ("checkpoints", "plugins"):
                self._refuse_link(name)
            # Listed here, because plugins of this run may write new files before the first step.
            self._earlier = _kept_files(self._folder)
            self.records = sole(RECORDS_GROUP)(self._folder)
            for name in self.records.names:
                opened.callback(self._close, name)
            self._opened = opened.pop_all()
        if not all(lock.exists for lock in self._locks):
            CONSOLE.warning(
                "this system has no file locks: do not start a second process in %s", self.path
            )

    @property
    def checkpoints(self) -> Path:
        """The directory of checkpoints; RunDirectoryError if it is a link or another run has it."""
        try:
            self._check_locks()
            self._refuse_link("checkpoints")
        except BlockingIOError as error:
            raise _taken(self.path, error) from None
        except NotADirectoryError as error:
            msg = f"{self._checkpoints} cannot be reached: {error.strerror}; move it away"
            raise RunDirectoryError(msg) from error
        except OSError:  # the disk fails, or the folder was deleted: a save tells, or makes it
            pass
        return self._checkpoints

    def _check_locks(self) -> None:
        for lock in self._locks:
            lock.check()

    @contextmanager
    def _held(self) -> Iterator[None]:
        with _prepared(self.path):
            self._check_locks()
            yield

    def _refuse_link(self, name: str) -> None:
        found = self._folder.stat(name)
        if found is not None and stat.S_ISLNK(found.st_mode):
            raise RunDirectoryError(_LINKED.format(self.path / name))

    def close(self) -> None:
        """Close the files and release the lock."""
        self._opened.close()

    def rewind(self, step: int, saved: Mapping[str, Any]) -> tuple[int, dict[str, str]]:
        """Remove from the records what is later than update `step`, or damaged.

        `saved` is the checkpoint's fact about the records. Return the last update with a row, and
        what is lost of each file.
        """
        with self._held():
            found: tuple[int, dict[str, str]] = self.records.rewind(step, saved)
            return found

    def peaks_of(self, step: int) -> dict[str, MemorySample]:
        """Return the memory peaks by phase, from the summary of a run that ended at `step`."""
        try:
            summary = json.loads(self._folder.read("summary.json", _LARGEST_SUMMARY))
            peaks = summary["peak_bytes"].items() if summary["steps"] == step else ()
            return {phase: MemorySample(**peak) for phase, peak in peaks}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return {}  # no run has ended at this step, or the file is damaged

    def forget_evaluation(self, step: int) -> None:
        """Remove the validation loss of update `step`, because it will be measured again."""
        self._contained("metrics.jsonl", lambda: self.records.forget_evaluation(step))

    def start_afresh(self) -> Path | None:
        """Remove the records of an earlier run. The earlier run must have no checkpoints.

        The report and the plugins' files of the earlier run are moved to a new folder `earlier-N`.
        Returns this folder, or None if there was nothing to move.
        """
        with self._held():
            self._refuse_checkpoints_elsewhere()
            self.records.remove()
            for name in ("origins.json", "summary.json"):
                self._folder.unlink(name)
            now = _kept_files(self._folder)
            earlier = [names for names, file in self._earlier.items() if now.get(names) == file]
            if not earlier:
                return None
            new = (f"earlier-{number}" for number in count(1))
            aside = next(name for name in new if self._folder.stat(name) is None)
            for names in earlier:
                source, target = self._folder, self._folder.folder(aside, make=True)
                for name in names[:-1]:
                    source, target = source.folder(name), target.folder(name, make=True)
                source.rename(names[-1], names[-1], target)
        return self.path / aside

    def _refuse_checkpoints_elsewhere(self) -> None:
        try:
            config = parse(self._folder.read("config.toml", _LARGEST_SUMMARY).decode())
            root = Path(config["run"]["checkpoint_dir"]).resolve()
        except (OSError, ValueError, LookupError, TypeError, ConfigError):
            return  # there is no earlier run, or it had no other directory
        if checkpoints(root):
            msg = (
                f"{self.path} holds a run whose checkpoints are in {root}; go on with "
                f"run.checkpoint_dir and --resume auto (resume='auto'), or set run.dir elsewhere"
            )
            raise RunDirectoryError(msg)

    def row(self, record: StepRecord) -> None:
        """Append a row to steps.csv."""
        self._contained("steps.csv", lambda: self.records.row(record))

    def line(self, name: str, values: Mapping[str, Any]) -> None:
        """Append a line of JSON to the record `name`."""
        self._contained(name, lambda: self.records.line(name, values))

    def whole(self, name: str, text: str) -> None:
        """Replace the file `name` atomically."""
        self._contained(name, lambda: self._folder.replace(name, text.encode()))

    def _contained(self, name: str, write: Callable[[], object]) -> None:
        if os.getpid() != self._process:
            return  # in a forked child; only the parent writes
        try:
            self._check_locks()
            write()
        except BlockingIOError as error:
            raise _taken(self.path, error) from None
        except OSError as error:
            self._warn(name, error)

    def _close(self, name: str) -> None:
        try:
            self.records.close(name)
        except OSError as error:  # a network disk may say only now that it is full
            self._warn(name, error)

    def _warn(self, name: str, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            msg = "cannot write %s: %s; training goes on without it"
            CONSOLE.warning(msg, self.path / name, error.strerror)


def _kept_files(folder: Folder) -> dict[tuple[str, ...], tuple[int, int]]:
    """Return the device and inode of the report and of each file of a plugin, by names."""
    places: list[tuple[Folder, tuple[str, ...]]] = [(folder, ("report.html",))]
    if folder.stat("plugins") is not None:
        plugins = folder.folder("plugins")
        # Linked folders are skipped: the user made them, and they may be on another disk.
        for name in plugins.names():
            found = plugins.stat(name)
            if found is not None and stat.S_ISDIR(found.st_mode):
                inner = plugins.folder(name)
                places += [(inner, ("plugins", name, file)) for file in inner.names()]
    stats = {names: place.stat(names[-1]) for place, names in places}
    return {names: (found.st_dev, found.st_ino) for names, found in stats.items() if found}


@contextmanager
def _prepared(path: Path, key: str = "run.dir") -> Iterator[None]:
    try:
        yield
    except BlockingIOError as error:
        raise _taken(path, error, key) from None
    except OSError as error:
        what = "run directory" if key == "run.dir" else "directory of checkpoints"
        way_out = "raise ulimit -n" if error.errno == errno.EMFILE else f"set {key} elsewhere"
        msg = f"cannot write in the {what} {path}: {error.strerror}; {way_out}"
        raise RunDirectoryError(msg) from error


def _taken(path: Path, error: OSError, key: str = "run.dir") -> RunDirectoryError:
    return RunDirectoryError(
        f"another process (pid {error.strerror}) trains in {path}; wait for it or set {key}"
    )
