"""Reads data sets of Hugging Face's datasets."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import datasets
from datasets.exceptions import DatasetsError
from pyarrow import ArrowException

from neaptide import ConfigError, DataError
from neaptide.errors import described

from .documents import Raw

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TRAIN = "train"
_MARKS = "state.json", "dataset_dict.json"
"""Files that `save_to_disk` writes."""
_ERRORS = (OSError, ValueError, KeyError, DatasetsError, ArrowException)


@attrs.frozen(eq=False)
class Split:
    """One split of a data set."""

    label: str
    """How messages call it."""
    rows: Any

    def digest(self) -> str:
        """Return a hash of the files that hold the rows; DataError if they are in memory."""
        files = [Path(one["filename"]) for one in self.rows.cache_files]
        if not files:
            msg = f"{self.label} has no files; save it with save_to_disk @ data.name"
            raise DataError(msg)
        found = hashlib.sha256(b"hf")
        for path in files:
            with path.open("rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
        return found.hexdigest()

    def read(self, fields: Sequence[str]) -> Iterator[Raw]:
        """Yield the rows in order; only the columns `fields` are read, if there are any."""
        there = [name for name in fields if name in self.rows.column_names]
        for number, row in enumerate(self.rows.select_columns(there) if there else self.rows, 1):
            yield Raw(f"{self.label}, row {number}", row)


def splits_of(name: str, *, download: bool) -> dict[str, Split]:
    """Return the splits of a data set by name; one without splits is `train`.

    Args:
        name: a directory that `save_to_disk` wrote, another local one with a data set, or an id.
        download: whether a data set that is not here is downloaded.

    Raises:
        ConfigError: there is no such data set. The message has one line.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir() and not download:
        msg = (
            f"{name!r} is no directory; to download a data set of this id, set "
            f"data.options.download = true @ data.name"
        )
        raise ConfigError(msg)
    try:
        if any((folder / mark).is_file() for mark in _MARKS):
            found = datasets.load_from_disk(str(folder))
        else:
            found = datasets.load_dataset(str(folder) if folder.is_dir() else name)
    except _ERRORS as error:
        msg = f"{name!r} cannot be loaded: {described(error)} @ data.name"
        raise ConfigError(msg) from error
    given = found if isinstance(found, datasets.DatasetDict) else {_TRAIN: found}
    return {key: Split(f"{name}, split {key}", rows) for key, rows in given.items()}


def chosen(splits: dict[str, Split], split: str, name: str, key: str) -> Split:
    """Return a split; ConfigError or DataError if there is none of this name, or no row in it."""
    if split not in splits:
        msg = f"{name!r} has no split {split!r}; it has {', '.join(sorted(splits))} @ {key}"
        raise ConfigError(msg)
    if not len(splits[split].rows):
        msg = f"{splits[split].label} has no rows @ {key}"
        raise DataError(msg)
    return splits[split]
