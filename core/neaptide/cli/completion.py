"""`neaptide completion`: what makes a shell complete verbs and options."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from cyclopts import App, Parameter

from neaptide.errors import NeaptideError

from .output import AsJson, print_json, print_text

if TYPE_CHECKING:
    from collections.abc import Callable

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
        """Print the script that makes your shell complete verbs and options, or install it.

        `neaptide completion --install` is all most people need; a new shell then has it. For this
        shell alone: `source <(neaptide completion bash)`.
        """
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


def _shell_of(variable: str) -> Shell:
    name = PurePath(variable).name
    for shell in SHELLS:
        if shell == name:
            return shell
    msg = f"cannot tell your shell from SHELL={variable!r}; name it: {', '.join(SHELLS)}"
    raise NeaptideError(msg)
