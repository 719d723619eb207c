"""The colours of the phases, in terminals and on pages. Imports no torch."""

from __future__ import annotations

import attrs


@attrs.frozen
class Colour:
    """A phase's colour: name and code in a terminal, hexadecimal on a light or dark background."""

    terminal: str
    ansi: int
    light: str
    dark: str


COLOURS = {
    "warmup": Colour("yellow", 33, "#b7791f", "#e9b44c"),
    "full": Colour("blue", 34, "#2563eb", "#6ea2ff"),
    "predict": Colour("magenta", 35, "#b423c4", "#e07bf0"),
    "correct": Colour("green", 32, "#16803c", "#4fc87a"),
}
"""The colour of every phase in all displays, in the order of the cycle."""
