"""The file of `gpu.py`: written after each step, without names of hosts, users and folders."""

from __future__ import annotations

import getpass
import json
import re
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = 1
FINAL = ("done", "missing")
"""Outcomes of steps that a later call does not repeat."""
_PATH = re.compile(r"(?<![\w.~…])~?(?:/[\w.+@-]+)+/([\w.+@-]+)")
_SHORT = 3
Document = dict[str, Any]


class OtherMachineError(Exception):
    """The file has results of another device, or of the simulated one."""


def opened(path: Path, device: Document, *, simulated: bool) -> Document:
    """Return the document to go on with: that of the file, or a new one.

    A dry run always begins anew, because its file has no figures. Raises OtherMachineError if the
    file was written on another device.
    """
    new = {"format": FORMAT, "simulated": simulated, "device": device, "slices": {}}
    if simulated or not path.exists():
        return new
    found = read(path)
    keys = ("format", "simulated")
    same = all(found.get(key) == new[key] for key in keys)
    if not same or found["device"]["name"] != device["name"]:
        msg = f"{path} has results of another device, {found['device'].get('name')}"
        raise OtherMachineError(msg)
    return found


def read(path: Path) -> Document:
    """Return the document of a file; ValueError if it is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        msg = f"{path} is not JSON ({error})"
        raise ValueError(msg) from None
    if not isinstance(found, dict) or not {"format", "simulated", "device", "slices"} <= set(found):
        msg = f"{path} is no file of this command"
        raise ValueError(msg)
    return found


def entry_of(document: Document, part: str, name: str) -> Document | None:
    """Return what is known of a step, or None."""
    found: Document | None = document["slices"].get(part, {}).get(name)
    return found


def put(document: Document, part: str, name: str, entry: Document) -> None:
    """Note what came of a step."""
    document["slices"].setdefault(part, {})[name] = entry


def write(path: Path, document: Document) -> None:
    """Write the document, whole or not at all."""
    shown = without_names(document, names_here())
    if document["simulated"]:
        kept = {key: document[key] for key in ("format", "simulated")}
        shown = {**without_figures(shown), **kept}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(shown, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)


def names_here() -> list[str]:
    """Return names of this host and this user that must not be in the file."""
    names = {socket.gethostname(), socket.gethostname().partition(".")[0], getpass.getuser()}
    known = [name for name in names if len(name) >= _SHORT and name not in ("root", "localhost")]
    return sorted(known, key=len, reverse=True)  # a short name may begin a longer one


def without_names(value: Any, names: list[str]) -> Any:
    """Return the value with every name, and every folder of an absolute path, replaced by `…`."""
    if isinstance(value, dict):
        return {
            without_names(key, names): without_names(each, names) for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_names(each, names) for each in value]
    if not isinstance(value, str):
        return value
    text = _PATH.sub(r"…/\1", value)
    for name in names:
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "…", text)
    return text


def without_figures(value: Any) -> Any:
    """Return the value with `simulated` in the place of each figure, and of each printed report."""
    if isinstance(value, dict):
        return {
            key: "simulated" if key == "report" else without_figures(each)
            for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_figures(each) for each in value]
    return "simulated" if isinstance(value, int | float) and not isinstance(value, bool) else value
