"""Until 0.2, an import or attribute access by an old name raises an error with the new name."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@cache
def names(kind: str) -> dict[str, Any]:
    """Return a dict from old names to new ones: `modules`, `attributes` or config `sections`."""
    import tomllib  # noqa: PLC0415 - the command line starts without it

    text = Path(__file__).with_name("renamed.toml").read_text(encoding="utf-8")
    table: dict[str, Any] = tomllib.loads(text)[kind]
    return table


class _Finder:
    """The last finder in `sys.meta_path`: Python calls it if no other finder knows the module."""

    @staticmethod
    def find_spec(fullname: str, *_: object) -> None:
        if fullname.startswith("neaptide") and fullname in names("modules"):
            raise ImportError(_line(fullname, names("modules")[fullname]), name=fullname)


def attribute(owner: str, name: str, error: type[Exception] = AttributeError) -> Exception:
    """Return the error for a missing attribute. For an old name, the text has the new name."""
    new = names("attributes").get(f"{owner}.{name}")
    if new is None:
        return AttributeError(f"{owner!r} has no attribute {name!r}")
    return error(_line(f"{owner.rpartition('.')[2]}.{name}", new))


def missing_in(module: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module. For an old name it raises ImportError.

    `from module import name` would drop the text of an AttributeError.
    """

    def missing(name: str) -> Any:
        raise attribute(module, name, ImportError)

    return missing


def with_old_names(cls: type[T]) -> type[T]:
    """Let the old attributes of a class raise AttributeError with the new name.

    Each old name becomes a descriptor, because `__getattr__` would slow down other attributes.
    """
    owner = f"{cls.__module__}.{cls.__name__}"
    for old in names("attributes"):
        if old.rpartition(".")[0] == owner:
            setattr(cls, old.rpartition(".")[2], _Old(owner, old.rpartition(".")[2]))
    return cls


class _Old:
    def __init__(self, owner: str, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: object, cls: type | None = None) -> Any:
        raise attribute(self._owner, self._name)


def _line(old: str, new: str) -> str:
    return f"{old} has another name since 0.1: {new}"


if not any(finder is _Finder for finder in sys.meta_path):
    sys.meta_path.append(_Finder)
