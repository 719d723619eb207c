"""Loads the verbs that distributions ship as entry points: functions or cyclopts Apps.

A verb has the name of its entry point; `config.schema` is the subcommand `schema` of `config`. Only
verbs that the arguments may use are imported. If a verb cannot be loaded, all other verbs work.
"""

from __future__ import annotations

import re
from copy import deepcopy
from inspect import isroutine
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from neaptide.errors import PluginError, text_of
from neaptide.io.logging import CONSOLE
from neaptide.plugin import shipped
from neaptide.text import screen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from neaptide.plugin import ShippedEntry

GROUP = "neaptide.verbs"
_NAME = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*")


def add_verbs(app: App, given: Sequence[str] = ()) -> None:
    """Add to `app` every verb that the arguments `given` may use; without arguments, all verbs."""
    entries = shipped(GROUP)
    first = given[0] if given else ""
    known = {name for name in app if not name.startswith("-")}
    known |= {name.partition(".")[0] for name in entries}
    absent: set[str] = set()
    for name, entry in entries.items():
        if not _NAME.fullmatch(name):
            CONSOLE.warning("%s: %r cannot name a verb", entry.distribution, name)
        elif first not in known or first == name.partition(".")[0]:
            _add(app, name, entries, absent)


def _add(home: App, name: str, entries: Mapping[str, ShippedEntry], absent: set[str]) -> None:
    """Add one verb to its parent verb; `absent` collects parents that no distribution ships."""
    entry, owner = entries[name], "neaptide"
    *above, last = name.split(".")
    try:
        for depth, part in enumerate(above, 1):
            path = ".".join(above[:depth])
            if part not in home or path in absent:
                absent.add(path)
                last = part
                msg = f"its parent verb {path!r} does not exist"
                raise PluginError(msg)  # noqa: TRY301 - reported below
            owner = entries[path].distribution if path in entries else owner
            home = home[part]
        if last in home:
            msg = f"{owner} and {entry.distribution} both ship a verb of this name; uninstall one"
            raise PluginError(msg)  # noqa: TRY301
        verb = entry.load()
        if not isinstance(verb, App) and not isroutine(verb):
            msg = f"{entry.target!r} must be a function or an App (got {type(verb).__name__})"
            raise PluginError(msg)  # noqa: TRY301
        # Copied, because adding verbs below `verb` must not change the distribution's object.
        home.command(deepcopy(verb), name=last)
    except Exception as error:  # noqa: BLE001 - importing foreign code may raise anything
        problem = screen(" ".join(text_of(error).split()))
        if last in home:
            del home[last]
        shown = re.sub(r"([\\`*_\[\]<>])", r"\\\1", problem)  # the help is Markdown
        home.command(_broken(entry, problem), name=last, help=f"BROKEN: {shown}")


def _broken(entry: ShippedEntry, problem: str) -> Callable[..., None]:
    msg = f"verb {entry.name!r} from {entry.distribution} cannot be used: {problem}"

    def broken(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> None:
        del arguments
        raise PluginError(msg)

    return broken
