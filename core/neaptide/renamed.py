"""Old names, until 0.2: an import or attribute access by an old name raises with the new name."""

from __future__ import annotations

import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@cache
def names(kind: str) -> dict[str, str]:
    """Return a dict from old names to new names; `kind` is `"modules"` or `"attributes"`."""
    text = Path(__file__).with_name("renamed.toml").read_text(encoding="utf-8")
    table: dict[str, str] = tomllib.loads(text)[kind]
    return table


class _Finder:
    """The last finder in `sys.meta_path`: Python calls it if no other finder knows the module."""

    @staticmethod
    def find_spec(fullname: str, *_: object) -> None:
        if fullname.startswith("neaptide") and fullname in names("modules"):
            raise ImportError(_line(fullname, names("modules")[fullname]), name=fullname)


def attribute(owner: str, name: str, error: type[Exception] = AttributeError) -> Exception:
    """Return the error for a missing attribute; if `name` is an old name, with the new name."""
    new = names("attributes").get(f"{owner}.{name}")
    if new is None:
        return AttributeError(f"{owner!r} has no attribute {name!r}")
    return error(_line(f"{owner.rpartition('.')[2]}.{name}", new))


def missing_in(owner: str, error: type[Exception] = ImportError) -> Callable[..., Any]:
    """Return a `__getattr__` that raises `error` with the new name of a renamed attribute.

    A module raises ImportError, because `from module import name` drops the text of an
    AttributeError. A class raises AttributeError.
    """

    def missing(*arguments: Any) -> Any:
        raise attribute(owner, arguments[-1], error)

    return missing


def _line(old: str, new: str) -> str:
    return f"{old} has another name since 0.1: {new}"


if not any(finder is _Finder for finder in sys.meta_path):
    sys.meta_path.append(_Finder)
