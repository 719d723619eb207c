"""`neaptide presets`: show and copy the presets of installed distributions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App

from neaptide.cli.output import AsJson, Offers, print_json, print_note, print_table, print_text
from neaptide.config import by_suffix, loads, presets
from neaptide_toolkit.files import COMMENTS, write_new

Name = Annotated[str, Offers(presets.names)]


app = App(name="presets", help="Show and copy the presets.")


@app.command(name="list")
def list_(*, json: AsJson = False) -> None:
    """List the presets."""
    named = {name: _headline(presets.text(name)) for name in presets.names()}
    if json:
        print_json([{"name": name, "summary": summary} for name, summary in named.items()])
    else:
        print_table(named.items())
    for what, problem in presets.offered()[1].items():
        whose = f"presets of {what}" if " " in what else f"preset {what!r}"
        print_note(f"note: {whose} cannot be used: {problem}")


@app.command
def show(name: Name, /, *, json: AsJson = False) -> None:
    """Print a preset."""
    text = presets.text(name)
    if json:
        print_json({"name": name, "toml": text})
    else:
        print_text(text)


@app.command
def copy(name: Name, path: Path | None = None, /, *, json: AsJson = False) -> None:
    """Copy a preset to a new file; an existing file is never overwritten.

    The file's suffix determines its format; only TOML keeps the comments.
    """
    text = presets.text(name)
    target = path or Path(f"{name}.toml")
    notation = by_suffix(target)
    if notation.name != "toml":
        text = notation.dumps(loads(text))
        print_note(f"note: {COMMENTS}")
    write_new(target, text)
    if json:
        print_json({"name": name, "path": str(target)})
    else:
        print_text(f"copied to {target}; run it with: neaptide run {target}")


def _headline(text: str) -> str:
    first = text.splitlines()[0] if text else ""
    return first.removeprefix("#").strip()
