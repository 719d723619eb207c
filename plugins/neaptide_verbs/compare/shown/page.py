"""The results of a comparison as a self-contained HTML page with curves."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

from neaptide_toolkit.pages.html import figure_of, legend, page, paragraph, section, table
from neaptide_toolkit.pages.svg import Series, axis, chart

from .sentence import sentence
from .text import level_rows, number, rows, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

_CURVES = (("passes", "Validation loss by backward passes"), ("seconds", "Validation loss by time"))


def comparison_page(found: Mapping[str, Any], title: str) -> str:
    """Return one HTML document that loads no other file."""
    kinds = [kind for kind in ("plain", "averaged") if any(_points(found, kind, "passes"))]
    return page(
        f"{title} - Neaptide",
        (
            f'<header><div class="title"><h1>{escape(title)}</h1></div></header>',
            section("Result", *(paragraph(line) for line in _result(found))),
            section("Curves", *(_drawn(found, key, heading) for key, heading in _CURVES)),
            *(
                section(
                    "Weights as they are" if kind == "plain" else "Averaged weights",
                    table(lines[0], lines[1:], caption="Losses and multipliers"),
                )
                for kind in kinds
                if (lines := rows(found, kind))
            ),
            section(
                "To each loss",
                table(
                    (levels := level_rows(found))[0],
                    levels[1:],
                    caption="Backward passes and time to the baseline's losses",
                ),
            ),
        ),
    )


def _result(found: Mapping[str, Any]) -> list[str]:
    return [sentence(found), *verdict(found).splitlines()]


def _points(found: Mapping[str, Any], kind: str, key: str) -> list[list[tuple[float, float]]]:
    return [
        [
            (at[key], at[kind]["mean_loss"])
            for at in side["budgets"]
            if at[kind] is not None and math.isfinite(at[kind]["mean_loss"])
        ]
        for side in found["sides"].values()
    ]


def _drawn(found: Mapping[str, Any], key: str, heading: str) -> str:
    series = [
        Series(
            label=name,
            colour=colour,
            lines=[points] if len(points) > 1 else (),
            marks=[
                (point, f"{name}, {point[0]:.4g} {key}: {number(point[1])}") for point in points
            ],
        )
        for colour, (name, points) in enumerate(
            zip(found["sides"], _points(found, "plain", key), strict=True)
        )
        if points
    ]
    across = [point[0] for one in series for point in one.points()]
    down = [point[1] for one in series for point in one.points()]
    if not across:
        return ""
    x = axis(min(across), max(across), kind="seconds" if key == "seconds" else "")
    y = axis(min(down), max(down))
    unit = x.unit if key == "seconds" else key
    drawing = chart(heading, series, x=x, y=y, height=300, unit=unit)
    return figure_of(heading, drawing, legend(series))
