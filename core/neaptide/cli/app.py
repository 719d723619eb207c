"""Puts the verbs together and turns errors into one line and an exit code."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from importlib.metadata import version
from typing import TYPE_CHECKING

from cyclopts import App, CycloptsError
from rich.console import Console

from neaptide.errors import NeaptideError

from . import ckpt, configs, plugins, presets, run

if TYPE_CHECKING:
    from collections.abc import Sequence

_USAGE, _OUT_OF_MEMORY, _INTERRUPTED = 2, 4, 130


def build_app() -> App:
    """Return the application with all its verbs."""
    app = App(
        name="neaptide",
        help="Train models that do not fit: four phases, low memory peaks, plugins.",
        version=version("neaptide"),
        help_format="markdown",
    )
    app.command(run.run)
    for verbs in (configs.app, plugins.app, presets.app, ckpt.app):
        app.command(verbs)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code.

    0 ok, 2 bad usage or config, 4 out of memory, 5 diverged, 130 and 143 saved on a signal, 1
    anything else.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    app = build_app()
    as_json = "--json" in given
    try:
        result = app(
            given,
            console=Console(),
            print_error=False,
            exit_on_error=False,
            result_action="return_value",
        )
    except CycloptsError as error:
        return _fail(f"{_one_line(str(error))}; see neaptide --help", _USAGE, as_json=as_json)
    except NeaptideError as error:
        return _fail(str(error), error.exit_code, as_json=as_json)
    except KeyboardInterrupt:
        return _fail("stopped before the training began", _INTERRUPTED, as_json=as_json)
    except Exception as error:  # noqa: BLE001 - the last line of defence: show it and say what it was
        if _is_out_of_memory(error):
            text = f"out of memory: {_one_line(str(error))}"
            return _fail(text, _OUT_OF_MEMORY, as_json=as_json)
        traceback.print_exc()
        notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
        return _fail(f"{type(error).__name__}: {error}{notes}", 1, as_json=as_json)
    return result if isinstance(result, int) else 0


def _fail(text: str, code: int, *, as_json: bool) -> int:
    for line in text.splitlines():
        sys.stderr.write(f"error: {line}\n")
    if as_json:
        sys.stdout.write(json.dumps({"error": text, "exit_code": code}) + "\n")
    return code


def _is_out_of_memory(error: Exception) -> bool:
    torch = sys.modules.get("torch")
    kinds: tuple[type[BaseException], ...] = (MemoryError,)
    if torch is not None:
        kinds += (torch.OutOfMemoryError,)
    # On a CPU torch has no class of its own for it.
    return isinstance(error, kinds) or "DefaultCPUAllocator: can't allocate" in str(error)


def _one_line(text: str) -> str:
    return " ".join(text.split())
