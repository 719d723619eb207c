"""Text for people: a repr that fits on one line, and tables with aligned columns."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST, _WIDEST, _LONGEST_LINE = 40, 100, 1000


def one_line(self: Any) -> str:
    """Return an attrs object as a short text on one line. Classes set `__repr__ = one_line`."""
    named = [(field.name.lstrip("_"), field) for field in attrs.fields(type(self)) if field.repr]
    return called(self, *(f"{name}={brief(getattr(self, one.name))}" for name, one in named))


def called(self: object, *parts: str) -> str:
    """Return `Class(part, part)`, cut at 100 characters."""
    return cut(f"{type(self).__name__}({', '.join(parts)})", _WIDEST, "…)")


def visible(text: str, kept: str = "\n\t") -> str:
    """Return `text` without what a terminal obeys; characters in `kept` stay.

    Control characters, marks of text direction and lone surrogates are escaped as in JSON.
    """
    if text.isprintable():
        return text
    return "".join(c if c in kept or c.isprintable() else _escaped(ord(c)) for c in text)


def screen(text: str, first: int = 42, last: int = 8) -> str:
    """Return the first and last lines of `text`, `visible`, each of at most 1,000 characters."""
    lines = text.rstrip("\n").split("\n")
    more = len(lines) - first - last
    if more > 0:
        lines[first : first + more] = [f"and {more:,} more lines"]
    return "\n".join(shorten(visible(line), _LONGEST_LINE) for line in lines)


def _escaped(code: int) -> str:
    return f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


def shorten(text: str, limit: int = 80) -> str:
    """Return `text`; if it is longer than `limit` characters, remove its middle."""
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]}…{text[-half:]}"


def brief(value: Any, longest: int = _LONGEST) -> str:
    """Return a value as short text: `float32[16, 8]` for a tensor, `dict of 3`, a class's name."""
    kind = type(value).__name__
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple | dict | set | frozenset):
        parts = [*value, *value.values()] if isinstance(value, dict) else [*value]
        plain = all(isinstance(part, str | int | float) for part in parts)
        text = repr(value) if plain else ""
        return text if 0 < len(text) <= longest else f"{kind} of {len(value)}"
    if value is None or isinstance(value, str | int):
        return cut(repr(value), longest, "…")
    if isinstance(value, Enum | Path) or kind in {"dtype", "device"}:
        return cut(str(value), longest, "…")
    return str(getattr(value, "__name__", kind))


def cut(text: str, longest: int, end: str) -> str:
    """Return `text`; if it has more than `longest` characters, shorten it and end it with `end`."""
    return text if len(text) <= longest else text[: longest - len(end)] + end


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines of text with aligned columns, without spaces at the end of a line."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
