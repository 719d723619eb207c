"""The formats of configuration files; the suffix of a file chooses its format."""

from __future__ import annotations

import stat
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.config.values import TOO_DEEP, Invalid, hint, plain, too_deep
from neaptide.errors import ConfigError, PluginError
from neaptide.plugin import ShippedEntry, shipped
from neaptide.text import shorten

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT_GROUP = "neaptide.formats"
MAX_FILE_BYTES = 1 << 20
_PROBLEMS: dict[type, str] = {
    FileNotFoundError: "no such file",
    IsADirectoryError: "expected a file, found a directory",
}


@attrs.frozen
class Format:
    """A file format for tables of plain values. Every bit of a float is preserved.

    Its module has `parse(text)` and `write(table)`, and may have `SUFFIXES`.
    """

    name: str
    entry: ShippedEntry

    @property
    def _own(self) -> Any:
        # Imported on first use, as most files are TOML and the import of the others takes time.
        try:
            return self.entry.load()
        except PluginError as error:
            msg = f"format {self.name!r} of {self.entry.distribution} cannot be used: {error}"
            raise ConfigError(msg) from error

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of its files; by default `.` and the name."""
        with suppress(ConfigError):  # `parse` and `write` raise it
            return tuple(getattr(self._own, "SUFFIXES", (f".{self.name}",)))
        return (f".{self.name}",)

    def parse(self, text: str) -> dict[str, Any]:
        """Parse a document. The result may have values that are not plain, such as dates."""
        document: dict[str, Any] = self._own.parse(text)
        return document

    def loads(self, text: str) -> dict[str, Any]:
        """Parse a document; raise ConfigError if a value is not plain."""
        return _checked(self.parse(text))

    def dumps(self, table: Mapping[str, Any]) -> str:
        """Return a table as text; raise ConfigError for a value that `loads` refuses."""
        if too_deep(table):
            raise ConfigError(TOO_DEEP)
        return str(self._own.write(_checked(table)))


_OWN = EntryPoint("toml", "neaptide.config.toml", FORMAT_GROUP)
TOML = Format("toml", ShippedEntry(_OWN, "neaptide"))


@cache
def all_formats() -> Mapping[str, Format]:
    """Return TOML and the formats that the entry points of `neaptide.formats` name, by name."""
    others = {name: Format(name, one) for name, one in shipped(FORMAT_GROUP).items()}
    return {TOML.name: TOML, **others, TOML.name: TOML}


def by_name(name: str) -> Format:
    """Return the format `name`; raise ConfigError if the name is unknown."""
    known = all_formats()
    if name not in known:
        msg = f"unknown format {shorten(name)!r}{hint(name, known)}"
        raise ConfigError(msg)
    return known[name]


def by_suffix(path: Path) -> Format:
    """Return the format for a file's suffix; raise ConfigError if the suffix is unknown."""
    suffix = path.suffix.lower()
    if suffix == ".toml":
        return TOML
    known = all_formats()
    if suffix[1:] in known:
        return known[suffix[1:]]
    every = {each: entry for entry in known.values() for each in entry.suffixes}
    if suffix in every:
        return every[suffix]
    *others, last = every
    msg = f"only {', '.join(others)} and {last} are read (got {path.suffix or 'no suffix'!r})"
    raise ConfigError(msg)


def read_text(path: str | Path) -> str:
    """Return a file's text. If the file is unusable, raise ConfigError; its text omits the path."""
    content = _content(Path(path))
    by_suffix(Path(path))
    if len(content) > MAX_FILE_BYTES:
        msg = "larger than 1 MiB, the most for a configuration"
        raise ConfigError(msg)
    try:
        return content.decode("utf-8-sig")  # -sig removes a byte order mark
    except UnicodeDecodeError as error:
        msg = f"not UTF-8 text (byte {content[error.start]:#04x} at offset {error.start})"
        raise ConfigError(msg) from error


def _content(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # a read from a pipe may never end
            with path.open("rb") as file:
                return file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        msg = f"cannot be read ({getattr(error, 'strerror', None) or error})"
        raise ConfigError(_PROBLEMS.get(type(error), msg)) from error
    msg = "expected a file, found a pipe, a socket or a device"
    raise ConfigError(msg)


def _checked(table: Mapping[str, Any]) -> dict[str, Any]:
    try:
        document: dict[str, Any] = plain(table)
    except Invalid as error:
        raise ConfigError(*map(str, error.problems)) from error
    return document
