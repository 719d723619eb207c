"""The verbs that distributions ship: a function or a cyclopts App each, by entry point.

The entry point's name is the verb's; `config.schema` is `schema` below `config`. Only those that a
command line can mean are imported, and one that cannot be imported leaves the others as they are.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from neaptide.errors import PluginError
from neaptide.plugin import shipped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cyclopts import App

    from neaptide.plugin import Shipped

GROUP = "neaptide.verbs"


def add_verbs(app: App, given: Sequence[str] = ()) -> None:
    """Add to `app` every verb that the command line `given` can mean; all of them for none."""
    entries = shipped(GROUP)
    first = given[0] if given else ""
    verbs = {name for name in app if not name.startswith("-")}
    known = verbs | {name.partition(".")[0] for name in entries}
    for name, entry in entries.items():
        top, *below = name.split(".")
        if first in known and first != top:
            continue
        home, owner = app, "neaptide"
        while below and top in home:
            owner = entries[top].distribution if top in entries else owner
            home, top, below = home[top], below[0], below[1:]
        _add(home, ".".join([top, *below]), entry, owner)


def _add(home: App, name: str, entry: Shipped, owner: str) -> None:
    try:
        if name in home:
            msg = f"{owner} and {entry.distribution} both ship a verb of this name; uninstall one"
            raise PluginError(msg)  # noqa: TRY301 - told like every other fault of a distribution
        # A copy, so that a verb below another's does not stay in it.
        home.command(deepcopy(entry.load()), name=name)
    except Exception as error:  # noqa: BLE001 - what a stranger names may be anything
        if name in home:
            del home[name]
        home.command(_broken(entry, str(error)), name=name)


def _broken(entry: Shipped, problem: str) -> Callable[..., None]:
    msg = f"verb {entry.name!r} from {entry.distribution} cannot be used: {problem}"

    def broken(*arguments: str, **options: str) -> None:
        del arguments, options
        raise PluginError(msg)

    broken.__doc__ = f"BROKEN: {problem}"
    return broken
