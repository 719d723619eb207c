"""Keeps the tokens of documents in files, so that they are made once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from neaptide import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from .tokenizing import Encoded

_FACTS = "facts.json"
_FORMAT = 1
"""Changes when the files change their meaning."""
_ARRAYS: dict[str, Any] = {"tokens": np.int32, "counted": np.bool_, "ends": np.int64}


@attrs.frozen(eq=False)
class Stored:
    """The tokens of all documents, in files that are mapped into memory."""

    tokens: NDArray[np.int32]
    counted: NDArray[np.bool_]
    """For each token whether it counts for the loss."""
    ends: NDArray[np.int64]
    """The end of each document in the stream of tokens."""
    chats: int
    digest: str


class DamagedError(Exception):
    """Stored tokens are not as they were written."""


def directory_of(given: str | None) -> Path:
    """Return where tokens are kept: `given`, or a folder in the user's cache directory."""
    own, cache = os.environ.get("NEAPTIDE_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    if given is not None:
        return Path(given).expanduser()
    if own:
        return Path(own) / "data"
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "neaptide" / "data"
    except RuntimeError as error:
        msg = "no home directory to keep tokens in; name a directory @ data.options.cache"
        raise ConfigError(msg) from error


def key_of(*parts: str) -> str:
    """Return the name under which tokens are kept that depend on `parts`."""
    return hashlib.sha256(json.dumps([_FORMAT, *parts]).encode()).hexdigest()


def opened(folder: Path) -> Stored | None:
    """Return what is stored in `folder`, or None if it does not exist; check every byte.

    Raises:
        DamagedError: files are missing, or differ from what was written.
    """
    if not folder.is_dir():
        return None
    try:
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        arrays: dict[str, Any] = {}
        for name, kind in _ARRAYS.items():
            path = folder / name
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != facts["sha256"][name]:
                    msg = f"{path} is not as it was written"
                    raise DamagedError(msg)
            arrays[name] = np.asarray(np.memmap(path, kind, mode="r"))
        return Stored(**arrays, chats=int(facts["chats"]), digest=folder.name)
    except (OSError, ValueError, KeyError, TypeError) as error:
        msg = f"{folder} cannot be read: {type(error).__name__} {error}"
        raise DamagedError(msg) from error


def write(folder: Path, encoded: Iterable[Encoded]) -> None:
    """Write tokens into `folder`, all or nothing.

    The files are made beside it, and moved there when they are complete. Another process may do the
    same at the same time: the first one wins, and both wrote the same.

    Raises:
        DataError: the disk is full, or the directory cannot be written.
    """
    parent = folder.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        making = parent / f"{folder.name[:8]}-{uuid.uuid4().hex}"
        making.mkdir()
    except OSError as error:
        raise _unwritable(parent, error) from error
    try:
        facts = _write_arrays(making, encoded)
        (making / _FACTS).write_text(json.dumps(facts), encoding="utf-8")
        _to_disk(making)
        if opened_or_none(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)
            making.rename(folder)
    except OSError as error:
        if opened_or_none(folder) is None:
            raise _unwritable(parent, error) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)


def opened_or_none(folder: Path) -> Stored | None:
    """Return what is stored in `folder`, or None if it is not there or damaged."""
    try:
        return opened(folder)
    except DamagedError:
        return None


def _unwritable(parent: Path, error: OSError) -> DataError:
    return DataError(
        f"cannot keep tokens in {parent}: {error.strerror or error}; name another directory "
        f"@ data.options.cache"
    )


def _write_arrays(making: Path, encoded: Iterable[Encoded]) -> dict[str, Any]:
    sizes: list[int] = []
    chats = 0
    hashes = {name: hashlib.sha256() for name in _ARRAYS}
    with (making / "tokens").open("wb") as tokens, (making / "counted").open("wb") as counted:
        for part in encoded:
            for file, name, values in (
                (tokens, "tokens", part.tokens),
                (counted, "counted", part.counted),
            ):
                content = values.tobytes()
                file.write(content)
                hashes[name].update(content)
            sizes += part.sizes
            chats += part.chats
    content = np.cumsum(sizes, dtype=np.int64).tobytes()
    (making / "ends").write_bytes(content)
    hashes["ends"].update(content)
    if not sum(sizes):
        msg = "the data have documents, but no tokens; check the files @ data.name"
        raise DataError(msg)
    return {"chats": chats, "sha256": {name: found.hexdigest() for name, found in hashes.items()}}


def _to_disk(making: Path) -> None:
    for path in making.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
