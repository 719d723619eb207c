"""Finds the files of the data, and reads their documents one by one."""

from __future__ import annotations

import glob
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from neaptide import DataError
from neaptide.errors import described

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ROWS = 1024
"""Rows of a parquet file that are read at once."""


@attrs.frozen
class Raw:
    """A document before it is tokenized: a row of a table, a line of JSON or a whole text."""

    where: str
    """The file, and the line or row."""
    content: str | dict[str, Any]
    is_json: bool = False


@attrs.frozen
class Files:
    """The files that a pattern names, in order."""

    scheme: str
    paths: tuple[Path, ...]

    def digest(self) -> str:
        """Return a hash of the scheme and of what the files hold, in order."""
        found = hashlib.sha256(self.scheme.encode())
        for path in self.paths:
            with _opened(path) as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
        return found.hexdigest()

    def read(self, fields: Sequence[str]) -> Iterator[Raw]:
        """Yield the documents in order. Of tables only the columns `fields` are read, if any."""
        for path in self.paths:
            if self.scheme == "parquet":
                yield from _rows(path, fields)
            else:
                yield from _texts(path) if self.scheme == "text" else _lines(path)


def files_of(scheme: str, pattern: str, key: str) -> Files:
    """Return the files that `pattern` names, sorted; DataError if there is none, or one is empty.

    Args:
        scheme: `text`, `jsonl` or `parquet`.
        pattern: a path in which `*`, `?` and `**` stand for names.
        key: the setting that has the pattern, such as `data.name`.
    """
    found = glob.glob(str(Path(pattern).expanduser()), recursive=True)  # noqa: PTH207 - it takes absolute patterns
    paths = tuple(sorted(Path(name) for name in found if Path(name).is_file()))
    if not paths:
        msg = f"no file matches {pattern!r} (in {Path.cwd()}); correct the pattern @ {key}"
        raise DataError(msg)
    for path in paths:
        if path.stat().st_size == 0:
            msg = f"{path} is empty; remove it, or narrow the pattern {pattern!r} @ {key}"
            raise DataError(msg)
    return Files(scheme, paths)


def _opened(path: Path) -> Any:
    try:
        return path.open("rb")
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror} @ data.name"
        raise DataError(msg) from error


def _decoded(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        msg = f"{where} is no UTF-8 text: {error.reason} at byte {error.start} @ data.name"
        raise DataError(msg) from error


def _texts(path: Path) -> Iterator[Raw]:
    with _opened(path) as file:
        yield Raw(str(path), _decoded(file.read(), str(path)))


def _lines(path: Path) -> Iterator[Raw]:
    read = 0
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                read += 1
                where = f"{path}, line {number}"
                yield Raw(where, _decoded(line, where), is_json=True)
    if not read:
        msg = f"{path} has only empty lines; remove it, or narrow the pattern @ data.name"
        raise DataError(msg)


def _rows(path: Path, fields: Sequence[str]) -> Iterator[Raw]:
    from pyarrow import ArrowException, parquet  # noqa: PLC0415 - it is optional

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            there = [name for name in fields if name in file.schema_arrow.names]
            for batch in file.iter_batches(_ROWS, columns=there or None):
                for row in batch.to_pylist():
                    number += 1
                    yield Raw(f"{path}, row {number}", row)
    except (ArrowException, OSError) as error:
        msg = f"{path} cannot be read as parquet: {described(error)} @ data.name"
        raise DataError(msg) from error
    if not number:
        msg = f"{path} has no rows; remove it, or narrow the pattern @ data.name"
        raise DataError(msg)


def record_of(raw: Raw) -> dict[str, Any]:
    """Return the fields of a document; DataError if its JSON is broken."""
    if isinstance(raw.content, dict):
        return raw.content
    try:
        found = json.loads(raw.content)
    except ValueError as error:
        msg = f"{raw.where} is no JSON: {error} @ data.name"
        raise DataError(msg) from error
    if not isinstance(found, dict):
        msg = (
            f'{raw.where} must be an object such as {{"text": "…"}} (got {found!r:.40}) @ data.name'
        )
        raise DataError(msg)
    return found
