"""Parts of an HTML page: escaped text, tables, figures with their legend, the document.

Each function returns markup. Plain text arguments are escaped; arguments that are markup are
inserted unchanged.
"""

from __future__ import annotations

from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from neaptide_toolkit.pages.colours import COLOURS

from .text import counted, figure

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .svg import Series

_FOLD = 12
"""Largest number of rows of a table that is not folded."""


def page(title: str, body: Iterable[str]) -> str:
    """Return a whole HTML document with the markup in `body`. The document loads no other file."""
    style = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    style += _palette()
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _palette() -> str:
    """Return the CSS variables `--c0`, `--c1`, … with the colours of the phases."""
    light = "".join(f" --c{i}: {one.light};" for i, one in enumerate(COLOURS.values()))
    dark = "".join(f" --c{i}: {one.dark};" for i, one in enumerate(COLOURS.values()))
    return (
        f":root {{{light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{{dark} }} }}\n"
        f"@media print {{ :root {{{light} }} }}\n"
    )


def section(title: str, *parts: str) -> str:
    """Return a section around the markup texts `parts`; an empty string if all are empty."""
    inside = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{escape(title)}</h2>\n{inside}\n</section>" if inside else ""


def paragraph(text: str, kind: str = "note") -> str:
    """Return a paragraph of CSS class `kind`; an empty string for empty text."""
    return f'<p class="{kind}">{escape(text)}</p>' if text else ""


def tiles(figures: Iterable[tuple[str, str, str]]) -> str:
    """Return key figures as tiles: each tile has a name, a value and a short note on the value."""
    inside = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)} <small>{escape(more)}</small></dd></div>"
        for name, value, more in figures
    )
    return f'<dl class="tiles">{inside}</dl>'


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    caption: str,
    fold: str = "",
    left_out: int = 0,
) -> str:
    """Return a table, numbers aligned right; an empty string without rows.

    Args:
        header: the columns' names.
        rows: cells; numbers are formatted by `figure`, None is shown as `-`.
        caption: the table's content, for screen readers.
        fold: the plural noun for the rows (`jumps`); a long table is folded under that name.
        left_out: number of further rows that are not shown, stated below the table.
    """
    if not rows:
        return ""
    numeric = [all(_is_number(row[i]) for row in rows) for i in range(len(header))]
    head = "".join(
        f'<th scope="col"{_right(right)}>{escape(name)}</th>'
        for name, right in zip(header, numeric, strict=True)
    )
    body = "\n".join(
        "<tr>" + "".join(map(_cell, row, numeric, (i == 0 for i in range(len(row))))) + "</tr>"
        for row in rows
    )
    more = paragraph(f"{left_out:,} more are left out here; the run's files have them all.")
    shown = (
        f'<div class="wide"><table><caption>{escape(caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
        f"{more if left_out else ''}"
    )
    if not fold or len(rows) <= _FOLD:
        return shown
    total = len(rows) + left_out
    return f"<details><summary>{escape(f'{total:,} {fold}')}</summary>\n{shown}\n</details>"


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return value in {"-", "not known", "not measured"} or (
            value[:1].isdigit() and len(value) < 24  # noqa: PLR2004 - with its unit
        )
    return not isinstance(value, bool)


def _right(right: bool) -> str:  # noqa: FBT001 - private to tables
    return ' class="n"' if right else ""


def _cell(value: Any, right: bool, first: bool) -> str:  # noqa: FBT001 - mapped over columns
    text = escape(value if isinstance(value, str) else figure(value))
    if first:
        return f'<th scope="row"{_right(right)}>{text}</th>'
    return f"<td{_right(right)}>{text}</td>"


def legend(series: Iterable[Series]) -> str:
    """Return the legend of all series that have lines or marks."""
    entries = []
    for one in series:
        if not (one.lines or one.marks):
            continue
        kind = one.shape if one.marks and one.shape != "dot" else "stroke"
        sample = {
            "stroke": '<path d="M1 6H19"/>',
            "accepted": '<path d="M10 1 15 6 10 11 5 6Z"/>',
            "refused": '<path d="M6 2 14 10M6 10 14 2"/>',
        }[kind]
        dot = '<circle cx="10" cy="6" r="3.5"/>' if one.marks and one.shape == "dot" else ""
        entries.append(
            f'<li><svg class="sample {kind} c{one.colour % 10}" width="20" height="12" '
            f'aria-hidden="true">{sample}{dot}</svg>{escape(one.label)}</li>'
        )
    return f'<ul class="legend">{"".join(entries)}</ul>'


def figure_of(title: str, drawing: str, key: str, *, unit: str = "", note: str = "") -> str:
    """Return a drawing with its heading and unit; `drawing` and the legend `key` are markup."""
    heading = f"<b>{escape(title)}</b>"
    if unit:
        heading += f' <span class="unit">{escape(unit)}</span>'
    if note:
        heading += f' <span class="source">{escape(note)}</span>'
    return (
        f'<figure><figcaption>{heading}</figcaption>{key}<div class="plot">{drawing}</div></figure>'
    )


def command(text: str) -> str:
    """Return a command in a form that is easy to copy."""
    return f"<pre><code>{escape(text)}</code></pre>"


def folded(count: int, noun: str, inside: str) -> str:
    """Return the markup `inside` as a folded part of the page, with a title such as `2 jumps`."""
    return f"<details><summary>{escape(counted(count, noun))}</summary>\n{inside}\n</details>"
