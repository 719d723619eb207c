"""`neaptide completion`: what makes a shell complete verbs and options."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

from cyclopts import App, Parameter

from neaptide.cli import configs, plugins, presets, run
from neaptide.cli.output import AsJson, print_json, print_text
from neaptide.config import FORMATS, FRAMEWORKS
from neaptide.config.presets import names
from neaptide.errors import NeaptideError
from neaptide.hooks.registry import installed_plugins

from .convert.verb import convert

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Shell = Literal["bash", "zsh", "fish"]
SHELLS: tuple[Shell, ...] = get_args(Shell)


def completion_of(app: App) -> Callable[..., None]:
    """Return the verb for `app`."""

    def completion(
        shell: Annotated[Shell | None, Parameter(help="Left out: the one `$SHELL` names.")] = None,
        /,
        *,
        install: Annotated[
            bool, Parameter(negative="", help="Install it for your user, and say where.")
        ] = False,
        json: AsJson = False,
    ) -> None:
        """Print the script that makes your shell complete verbs, options and names, or install it.

        `neaptide completion --install` is all most people need; a new shell then has it. For this
        shell alone: `source <(neaptide completion bash)`. Names are those of presets and of the
        plugins installed now.
        """
        _offer_names()
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
            print_text(f"completion for {chosen} installed in {path}; open a new shell to have it")

    return completion


def _offer_names() -> None:
    """Have the words that verbs take besides others, such as names of presets, completed."""
    offers: tuple[tuple[Callable[..., Any], str, Iterable[str]], ...] = (
        (run.run, "preset", names()),
        (run.run, "resume", ("auto",)),
        (configs.check, "preset", names()),
        (configs.show, "preset", names()),
        (convert, "from_", FRAMEWORKS),
        (convert, "to", FORMATS),
        (presets.show, "name", names()),
        (presets.copy, "name", names()),
        (plugins.show, "name", installed_plugins()),
    )
    for verb, parameter, words in offers:
        _offer(verb, parameter, words)


def _offer(verb: Callable[..., Any], parameter: str, words: Iterable[str]) -> None:
    """Add `words` to the type that scripts are made from; any other string is still taken."""
    hint = get_type_hints(verb, include_extras=True)[parameter]
    taken, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    offered: Any = Literal[tuple(words)] | taken
    verb.__annotations__[parameter] = Annotated[(offered, *extras)] if extras else offered


def _shell_of(variable: str) -> Shell:
    name = PurePath(variable).name
    for shell in SHELLS:
        if shell == name:
            return shell
    msg = f"cannot tell your shell from SHELL={variable!r}; name it: {', '.join(SHELLS)}"
    raise NeaptideError(msg)
