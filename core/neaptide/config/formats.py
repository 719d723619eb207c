"""The formats a configuration is read from and written in; the suffix of a file says which."""

from __future__ import annotations

import stat
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.config.values import TOO_DEEP, Invalid, hint, plain, shorten, too_deep
from neaptide.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_FILE_BYTES = 1 << 20


@attrs.frozen
class Format:
    """One notation for tables of plain values; floats come back from it bit for bit."""

    name: str
    suffixes: tuple[str, ...]

    @property
    def _own(self) -> Any:
        # Imported on first use: most files are TOML, and starting must be quick.
        return import_module(f"neaptide.config.{self.name}")

    def parse(self, text: str) -> dict[str, Any]:
        """Read a document's syntax; its values may still be none that a configuration can hold."""
        document: dict[str, Any] = self._own.parse(text)
        return document

    def has_comments(self, text: str) -> bool:
        """Return whether there are comments in a document that `parse` has read."""
        return bool(self._own.has_comments(text))

    def loads(self, text: str) -> dict[str, Any]:
        """Read a document of plain values; raise ConfigError for anything else."""
        return _checked(self.parse(text))

    def dumps(self, table: Mapping[str, Any]) -> str:
        """Write a table; raise ConfigError if it holds what `loads` would not give back."""
        if too_deep(table):
            raise ConfigError(TOO_DEEP)
        return str(self._own.write(_checked(table)))


FORMATS = {
    name: Format(name, tuple(suffixes))
    for name, *suffixes in (("toml", ".toml"), ("yaml", ".yaml", ".yml"), ("json", ".json"))
}
"""The formats by name."""


def by_name(name: str) -> Format:
    """Return a format; raise ConfigError for an unknown name."""
    if name not in FORMATS:
        msg = f"unknown format {shorten(name)!r}{hint(name, FORMATS)}"
        raise ConfigError(msg)
    return FORMATS[name]


def by_suffix(path: Path) -> Format:
    """Return the format of a file; raise ConfigError where its suffix is of none."""
    suffix = path.suffix.lower()
    for entry in FORMATS.values():
        if suffix in entry.suffixes:
            return entry
    *others, last = (known for entry in FORMATS.values() for known in entry.suffixes)
    msg = f"only {', '.join(others)} and {last} are read (got {path.suffix or 'no suffix'!r})"
    raise ConfigError(msg)


def read_text(path: str | Path) -> str:
    """Return a file's text; raise ConfigError, without its name, if it is no configuration's."""
    content = _content(Path(path))
    by_suffix(Path(path))
    if len(content) > MAX_FILE_BYTES:
        msg = "larger than 1 MiB, which no configuration is"
        raise ConfigError(msg)
    try:
        return content.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        msg = f"not UTF-8 text (byte {content[error.start]:#04x} at offset {error.start})"
        raise ConfigError(msg) from error


def _content(path: Path) -> bytes:
    try:
        _refuse_special(path.stat().st_mode)
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        msg = "no such file"
        raise ConfigError(msg) from error
    except IsADirectoryError as error:
        msg = "expected a file, found a directory"
        raise ConfigError(msg) from error
    except ConfigError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        msg = f"cannot be read ({getattr(error, 'strerror', None) or error})"
        raise ConfigError(msg) from error


def _refuse_special(mode: int) -> None:
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a pipe would be waited for
        msg = "expected a file, found a pipe, a socket or a device"
        raise ConfigError(msg)


def _checked(table: Mapping[str, Any]) -> dict[str, Any]:
    try:
        document: dict[str, Any] = plain(table)
    except Invalid as error:
        raise ConfigError(*map(str, error.problems)) from error
    return document
