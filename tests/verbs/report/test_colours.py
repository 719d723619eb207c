"""A phase has one colour, wherever it is drawn."""

from __future__ import annotations

import re
from importlib import resources

from neaptide.api.phases import PHASES
from neaptide_toolkit.pages.colours import COLOURS
from neaptide_toolkit.pages.html import page
from neaptide_toolkit.pages.text import paint
from neaptide_verbs.report.charts import phase_colours


def test_every_phase_has_a_colour_and_no_two_have_the_same() -> None:
    assert list(PHASES) == list(COLOURS)
    for field in ("terminal", "ansi", "light", "dark"):
        assert len(PHASES) == len({getattr(one, field) for one in COLOURS.values()})


def test_a_page_draws_the_phases_in_their_colours() -> None:
    text = page("a run", [])
    for name, number in phase_colours([]).items():
        light, dark = COLOURS[name].light, COLOURS[name].dark
        assert [light, dark, light] == re.findall(rf"--c{number}: (#\w+);", text)


def test_a_terminal_shows_the_phases_in_their_colours() -> None:
    for name, colour in COLOURS.items():
        assert f"\x1b[{colour.ansi}mtext\x1b[0m" == paint("text", name, colour=True)


def test_the_style_sheet_leaves_the_colours_of_phases_to_the_table() -> None:
    style = (
        resources.files("neaptide_toolkit.pages").joinpath("page.css").read_text(encoding="utf-8")
    )
    assert [] == [one for one in COLOURS.values() if one.light in style or one.dark in style]
