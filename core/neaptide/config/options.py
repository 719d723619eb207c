"""Free tables such as `[model.options]`, checked by the class of whoever they are for."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from neaptide.config.hooks import structure_as
from neaptide.config.values import Invalid
from neaptide.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")


def structure_options(cls: type[T], values: Mapping[str, object], *path: str) -> T:
    """Return `values` as an instance of the attrs class `cls`.

    Raises ConfigError with one line a problem, its place given below `path`.
    """
    try:
        return structure_as(dict(values), cls)
    except Invalid as error:
        problems = error.problems
        for key in reversed(path):
            problems = tuple(problem.under(key) for problem in problems)
        raise ConfigError(*map(str, problems)) from None
