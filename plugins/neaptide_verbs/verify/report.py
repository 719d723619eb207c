"""What an issue needs of a verification: no weights, no data, no paths."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from neaptide.config import unstructure
from neaptide.errors import ConfigError
from neaptide.io.jsonable import jsonable
from neaptide_toolkit.files import write_new
from neaptide_toolkit.machine import facts

if TYPE_CHECKING:
    from pathlib import Path

    from neaptide.config import RunConfig
    from neaptide_toolkit.verifying import Verification

_PATH = re.compile(r"(?:~|[A-Za-z]:)?[/\\][\w.\\/ -]*[\w]")
_HIDDEN = "(hidden)"


def refuse_existing(directory: Path) -> None:
    """Raise ConfigError if the directory exists."""
    if directory.exists():
        msg = f"{directory} exists already; name a new directory @ --report"
        raise ConfigError(msg)


def write_report(directory: Path, found: Verification, config: RunConfig) -> None:
    """Write `verify.json` and `verify.txt`.

    Values of the sections `[model.options]`, `[data]` and `[run]` are left out, and so is every
    text of other settings that looks like a path. The names of modules and tensors, and the error
    that ended a run, are in the report.
    """
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        msg = f"cannot make {directory}: {error.strerror}; name another directory @ --report"
        raise ConfigError(msg) from error
    document = {
        "verification": _without_paths(found.as_json()),
        "config": _public(unstructure(config)),
        "machine": _without_paths(facts.facts()),
    }
    text = json.dumps(jsonable(document), indent=1)
    write_new(directory / "verify.json", f"{text}\n")
    write_new(directory / "verify.txt", f"{_without_paths(str(found))}\n")


def _public(table: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = dict(table)
    found.pop("run", None)
    found["data"] = {"name": table["data"]["name"], "options": _hidden(table["data"]["options"])}
    model = table["model"]
    found["model"] = {"name": model["name"], "options": _hidden(model["options"])}
    public: dict[str, Any] = _without_paths(found)
    return public


def _hidden(options: dict[str, Any]) -> dict[str, Any]:
    """Keep numbers, which are shapes, and hide everything else."""
    return {
        key: value if isinstance(value, int | float) else _HIDDEN for key, value in options.items()
    }


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_paths(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_paths(one) for one in value]
    if isinstance(value, str):
        return _PATH.sub(lambda path: path[0] if _is_tensor(path, value) else _HIDDEN, value)
    return value


def _is_tensor(path: re.Match[str], text: str) -> bool:
    """Return whether this is the end of a tensor's name, such as `weights/head.bias`."""
    from neaptide_toolkit.verifying.differences import ALL  # noqa: PLC0415 - it imports torch

    before = text[: path.start()]
    return before.endswith(tuple(kind for kind in ALL if kind not in {"loss", "evaluation"}))
