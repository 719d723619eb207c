"""`neaptide kernels`: lists the ops, and each op's provider and speed on this machine.

An op is an operation. Its providers are its implementations. A sample is a set of arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import attrs
from cyclopts import App, Parameter

from neaptide.cli.output import AsJson, print_json, print_table, print_text

from .kept_list import keep, kept
from .loading import check_known, device_named, kernels_of_plugins, large_samples, sample_named
from .roof import roof

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neaptide_kernels.registry import Timing

app = App(name="kernels", help="Show, explain, time and tune the kernels of this machine.")

Device = Annotated[
    str | None,
    Parameter(help="`cpu`, `cuda`, `xpu` or `mps`; by default the accelerator if there is one."),
]
SampleName = Annotated[
    str | None,
    Parameter(name="--sample", help="One of the op's sample inputs; by default the first."),
]


@app.command(name="list")
def list_(*, device: Device = None, json: AsJson = False) -> None:
    """List the ops (operations), and the provider (implementation) chosen for each op."""
    rows, notes = kept(device) or _listed(device)
    if json:
        print_json({"ops": rows, "notes": notes})
        return
    print_table(
        [(row["op"], row["chosen"], ", ".join(row["providers"]), row["summary"]) for row in rows]
    )
    _print_notes(notes)


def _listed(device: str | None) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row for each op, and notes; keep them for the next time if there are no notes."""
    from neaptide_kernels.registry.query import query_on  # noqa: PLC0415 - it imports torch
    from neaptide_kernels.registry.roof import unvalued  # noqa: PLC0415 - as above

    with kernels_of_plugins() as (kernels, notes):
        rows: list[dict[str, Any]] = []
        where = device_named(device)
        for name, op in sorted(kernels.ops.items()):
            sample = next(unvalued(op.spec, where))
            query = query_on(kernels.query(name, sample.arguments), where)
            explained = kernels.explain_query(query)
            refused = {one.provider: one.reason for one in explained.providers if one.reason}
            providers = [one.provider for one in explained.providers]
            rows.append(
                {
                    "op": name,
                    "summary": op.spec.summary,
                    "chosen": explained.chosen,
                    "providers": providers,
                    "refused": refused,
                }
            )
    if not notes:
        keep(device, rows)
    return rows, notes


app.command(roof)


@app.command
def explain(
    op: str, /, *, sample: SampleName = None, device: Device = None, json: AsJson = False
) -> None:
    """Show the provider chosen for one sample of an op, and why the others were not chosen."""
    with kernels_of_plugins() as (kernels, notes):
        check_known(kernels, op)
        chosen = sample_named(large_samples(kernels, op, device_named(device)), sample)
        explained = kernels.explain(op, chosen.arguments)
    if json:
        print_json({"sample": chosen.name, **attrs.asdict(explained), "notes": notes})
        return
    print_text(f"{op} on {chosen.name}: {explained.chosen} ({explained.why})\n")
    print_table(
        [
            (
                one.provider,
                f"priority {one.priority}",
                _seconds(one.seconds),
                one.reason or "usable",
            )
            for one in explained.providers
        ]
    )
    _print_notes(notes)


@app.command
def bench(op: str | None = None, /, *, device: Device = None, json: AsJson = False) -> None:
    """Time every provider whose results agree with the reference. Do not save the timings."""
    _measured(op, device, json=json, keep=False)


@app.command
def tune(op: str | None = None, /, *, device: Device = None, json: AsJson = False) -> None:
    """Time every provider with each of its configs, and save the timings for later runs."""
    _measured(op, device, json=json, keep=True)


def _measured(op: str | None, device: str | None, *, json: bool, keep: bool) -> None:
    from neaptide_kernels.accelerator import name_of  # noqa: PLC0415 - it imports torch
    from neaptide_kernels.registry.timings import merge  # noqa: PLC0415 - as above

    rows: list[dict[str, Any]] = []
    with kernels_of_plugins() as (kernels, notes):
        if op is not None:
            check_known(kernels, op)
        machine = name_of(device_named(device).type)
        if keep:
            merge(kernels.path, {})  # what cannot be kept is not measured
        if not json:
            print_text(f"on {machine}")
        for name in [op] if op is not None else sorted(kernels.ops):
            for sample in large_samples(kernels, name, device_named(device)):
                timings, refused = kernels.measure(name, sample.arguments, keep=keep)
                rows.append(
                    {
                        "op": name,
                        "sample": sample.name,
                        "timings": [attrs.asdict(timing) for timing in timings],
                        "refused": refused,
                    }
                )
                if not json:
                    _print_measured(name, sample.name, timings, refused)
    if json:
        print_json({"machine": machine, "measured": rows, "notes": notes})
        return
    if keep:
        print_text(f"kept in {kernels.path}")
    _print_notes(notes)


def _print_measured(
    op: str, sample: str, timings: Iterable[Timing], refused: dict[str, str]
) -> None:
    print_text(f"{op} on {sample}")
    print_table(
        [
            *(
                (f"  {timing.provider}", _seconds(timing.seconds), _config(timing.config))
                for timing in timings
            ),
            *((f"  {name}", "refused", reason) for name, reason in refused.items()),
        ]
    )


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "not measured"
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"  # noqa: PLR2004 - units


def _config(config: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in config.items())


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        print_text(f"note: {note}")
