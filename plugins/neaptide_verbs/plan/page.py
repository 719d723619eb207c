"""A plan as a page: bars of memory by phase and moment, for each tier."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from neaptide.io.units import size
from neaptide_toolkit.pages.html import figure_of, page, paragraph, section, table

from .value import changes, speed, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .processes import ProcessPlan
    from .value import Plan, TierPlan

_ROW, _BAR = 30, 10


def plan_page(plan: Plan) -> str:
    """Return an HTML document that loads no other file and has no script."""
    body = [f"<h1>{escape(f'Plan for {plan.machine}')}</h1>", paragraph(verdict(plan))]
    body += [section(name, *_tier(name, tier)) for name, tier in plan.tiers.items()]
    if plan.processes is not None:
        body.append(section("Processes", *_processes(plan.processes)))
    body.append(section("Speed", paragraph(speed(plan))))
    if plan.changes_tried:
        lines = changes(plan).splitlines()
        body.append(section("Changes", *(paragraph(line.strip()) for line in lines)))
    return page(f"Plan for {plan.machine}", body)


def _processes(processes: ProcessPlan) -> list[str]:
    columns = {"it holds at most": processes.holds, "it sends in a step": processes.sent}
    tables = [
        table((name, "bytes"), [(what, size(held)) for what, held in rows.items()], caption=name)
        for name, rows in columns.items()
    ]
    return [paragraph(processes.head()), *tables, paragraph(processes.told())]


def _tier(name: str, tier: TierPlan) -> list[str]:
    held = [(kind, size(nbytes)) for kind, nbytes in tier.kinds.items()]
    rows = [*held, ("needed", size(tier.needed)), ("has", size(tier.has) if tier.has else "-")]
    title = f"{name} by phase and moment: tensors"
    return [
        figure_of(title, _bars(tier.moments, 0), ""),
        figure_of(f"{name} at its peak, in {tier.worst}", _bars(tier.kinds, 1), ""),
        table(("what", "bytes"), rows, caption=f"{name} at its peak"),
    ]


def _bars(values: Mapping[str, int], colour: int) -> str:
    """Return one bar for each value, each below its name."""
    most = max([*values.values(), 1])
    height = _ROW * len(values)
    parts = [f'<svg role="img" width="100%" height="{height}">']
    for number, (name, value) in enumerate(values.items()):
        top, text = number * _ROW, escape(f"{name}: {size(value)}")
        parts.append(
            f'<text x="0" y="{top + 14}" fill="currentColor" font-size="12">{text}</text>'
            f'<rect class="c{colour}" fill="currentColor" x="0" y="{top + 18}" height="{_BAR}" '
            f'width="{100 * value / most:.2f}%"><title>{text}</title></rect>'
        )
    return "".join([*parts, "</svg>"])
