"""Old names, until 0.2: an import or attribute that uses one raises a line with the new name."""

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
    """Return the new name by the old one; `kind` is `"modules"` or `"attributes"`."""
    text = Path(__file__).with_name("renamed.toml").read_text(encoding="utf-8")
    table: dict[str, str] = tomllib.loads(text)[kind]
    return table


class _Finder:
    """The last finder that Python asks for a module: nobody else has found it."""

    @staticmethod
    def find_spec(fullname: str, *_: object) -> None:
        if fullname.startswith("neaptide") and fullname in names("modules"):
            raise ImportError(_line(fullname, names("modules")[fullname]), name=fullname)


def attribute(owner: str, name: str, error: type[Exception] = AttributeError) -> Exception:
    """Return the error for a missing attribute: with the new name, where `name` is an old one."""
    new = names("attributes").get(f"{owner}.{name}")
    if new is None:
        return AttributeError(f"{owner!r} has no attribute {name!r}")
    return error(_line(f"{owner.rpartition('.')[2]}.{name}", new))


def missing_in(owner: str, error: type[Exception] = ImportError) -> Callable[..., Any]:
    """Return the `__getattr__` of a module, or with AttributeError of a class, with renamed names.

    Of an AttributeError `from module import name` would drop the text.
    """

    def missing(*arguments: Any) -> Any:
        raise attribute(owner, arguments[-1], error)

    return missing


def _line(old: str, new: str) -> str:
    return f"{old} has another name since 0.1: {new}"


if not any(finder is _Finder for finder in sys.meta_path):
    sys.meta_path.append(_Finder)
