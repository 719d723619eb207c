"""`neaptide completion`: shell completion of verbs, options and names."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

from cyclopts import Parameter

from neaptide.cli.output import AsJson, Offers, print_json, print_text
from neaptide.errors import NeaptideError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cyclopts import App

Shell = Literal["bash", "zsh", "fish"]
SHELLS: tuple[Shell, ...] = get_args(Shell)


def completion(
    shell: Annotated[Shell | None, Parameter(help="By default the shell in `$SHELL`.")] = None,
    /,
    *,
    install: Annotated[
        bool, Parameter(negative="", help="Install the script, and print its path.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Print or install a script that completes verbs, options and names in your shell.

    Most users need only `neaptide completion --install` and a new shell. To try it in the current
    shell: `source <(neaptide completion bash)`. The script completes the names of presets and
    plugins that are installed now.
    """
    from neaptide.cli.app import build_app  # noqa: PLC0415 - it imports this module

    app = build_app()
    for verb in _verbs(app):
        _offer_words(verb)
    chosen = shell or _shell_of(os.environ.get("SHELL", ""))
    if not install:
        script = app.generate_completion(shell=chosen)
        if json:
            print_json({"shell": chosen, "script": script})
        else:
            print_text(script)
        return
    try:
        path = app.install_completion(shell=chosen)
    except OSError as error:
        msg = f"cannot write {error.filename}: {error.strerror}; print it without --install"
        raise NeaptideError(msg) from error
    if json:
        print_json({"shell": chosen, "path": str(path)})
    else:
        print_text(f"completion for {chosen} installed in {path}; open a new shell to use it")


def _verbs(app: App) -> Iterator[Callable[..., Any]]:
    for name in app:
        if not name.startswith("-"):
            verb = app[name].default_command
            if verb is not None:
                yield verb
            yield from _verbs(app[name])


def _offer_words(verb: Callable[..., Any]) -> None:
    """Add the words of `Offers` to the type hints of `verb`, so that the scripts complete them."""
    for parameter, hint in get_type_hints(verb, include_extras=True).items():
        if get_origin(hint) is not Annotated:
            continue
        taken, *extras = get_args(hint)
        offers = [extra for extra in extras if isinstance(extra, Offers)]
        if offers:
            offered: Any = Literal[tuple(offers[0].words())] | taken
            others = [extra for extra in extras if extra not in offers]
            verb.__annotations__[parameter] = Annotated[(offered, *others)] if others else offered


def _shell_of(variable: str) -> Shell:
    name = PurePath(variable).name
    for shell in SHELLS:
        if shell == name:
            return shell
    msg = f"cannot tell your shell from SHELL={variable!r}; name it: {', '.join(SHELLS)}"
    raise NeaptideError(msg)
