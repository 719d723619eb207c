"""`neaptide kernels`: lists the ops, and each op's provider and speed on this machine.

An op is an operation. Its providers are its implementations. A sample is a set of arguments.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import attrs
from cyclopts import App, Parameter

from neaptide.cli.output import AsJson, print_json, print_table, print_text
from neaptide.errors import NeaptideError, suggest, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch

    from neaptide_kernels.registry import Kernels, Sample, Timing

app = App(name="kernels", help="Show, explain, time and tune the kernels of this machine.")

_KINDS = ("cpu", "cuda", "xpu", "mps")

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
    with _kernels() as (kernels, notes):
        rows: list[dict[str, Any]] = []
        for name, op in sorted(kernels.ops.items()):
            sample = next(_large(kernels, name, _device(device)))
            explained = kernels.explain(name, sample.arguments)
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
    if json:
        print_json({"ops": rows, "notes": notes})
        return
    print_table(
        [(row["op"], row["chosen"], ", ".join(row["providers"]), row["summary"]) for row in rows]
    )
    _print_notes(notes)


@app.command
def explain(
    op: str, /, *, sample: SampleName = None, device: Device = None, json: AsJson = False
) -> None:
    """Show the provider chosen for one sample of an op, and why the others were not chosen."""
    with _kernels() as (kernels, notes):
        _known(kernels, op)
        chosen = _named(_large(kernels, op, _device(device)), sample)
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

    rows: list[dict[str, Any]] = []
    with _kernels() as (kernels, notes):
        if op is not None:
            _known(kernels, op)
        machine = name_of(_device(device).type)
        if not json:
            print_text(f"on {machine}")
        for name in [op] if op is not None else sorted(kernels.ops):
            for sample in _large(kernels, name, _device(device)):
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


@contextmanager
def _kernels() -> Iterator[tuple[Kernels, list[str]]]:
    """Yield the ops and providers of every installed plugin, and a list of notes.

    The notes state warnings, and plugins that could not be loaded. The list is complete when the
    context ends.
    """
    from neaptide.hooks.manager import HookManager  # noqa: PLC0415 - it imports torch
    from neaptide.hooks.registry import disabled_plugins, installed_plugins, load_class  # noqa: PLC0415 - as above
    from neaptide_kernels.registry import KERNELS, KernelScope, KernelWarning  # noqa: PLC0415 - as above

    notes: list[str] = []
    scope = KernelScope(KERNELS)
    try:
        blocked = disabled_plugins()
        for name, spec in installed_plugins().usable().items():
            if name in blocked:
                continue
            try:
                cls = load_class(spec)
                if hasattr(cls, "register_kernels"):
                    hooks = HookManager([(spec, cls(spec.config()))], object(), None)
                    hooks.notify("register_kernels", kernels=scope)
            except Exception as error:  # noqa: BLE001 - a third party's code may raise anything
                notes.append(f"plugin {name!r} was left out: {' '.join(text_of(error).split())}")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", KernelWarning)
            yield KERNELS, notes
        notes.extend(str(each.message) for each in caught)
    finally:
        scope.close()


def _device(name: str | None) -> torch.device:
    import torch  # noqa: PLC0415 - `neaptide --help` does not need it

    from neaptide.devices import api_of  # noqa: PLC0415 - as above

    if name is None:
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    if name not in _KINDS:
        msg = f"--device is {', '.join(_KINDS[:-1])} or {_KINDS[-1]} (got {name!r})"
        raise _UsageError(msg)
    if not api_of(name).is_available():
        msg = f"this machine has no usable {name.upper()} device; use --device cpu"
        raise _UsageError(msg)
    return torch.device(name)


class _UsageError(NeaptideError):
    exit_code = 2


def _known(kernels: Kernels, op: str) -> None:
    if op not in kernels.ops:
        msg = f"there is no op {op!r}{suggest(op, kernels.ops)}; see neaptide kernels list"
        raise _UsageError(msg)


def _large(kernels: Kernels, op: str, device: torch.device) -> Iterator[Sample]:
    return iter(kernels.ops[op].spec.large(device))


def _named(samples: Iterator[Sample], name: str | None) -> Sample:
    known = []
    for sample in samples:
        if name is None or sample.name == name:
            return sample
        known.append(sample.name)
    hint = suggest(name or "", known)
    msg = f"no sample is named {name!r}{hint}; the samples are {'; '.join(known)}"
    raise _UsageError(msg)


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "not measured"
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"  # noqa: PLR2004 - units


def _config(config: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in config.items())


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        print_text(f"note: {note}")
