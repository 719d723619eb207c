"""`neaptide kernels roof`: the least time of each op on a machine, computed from its rates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from neaptide.cli.output import AsJson, print_json, print_table, print_text

from .loading import UsageError, check_known, kernels_of_plugins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neaptide_kernels.registry import Kernels
    from neaptide_kernels.registry.roof import DeviceSpeed
    from neaptide_toolkit.machine.profiles import Machine

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def roof(
    op: str | None = None,
    /,
    *,
    device: Annotated[
        str | None,
        Parameter(
            help="A profile such as `h100`, or a file; `cpu` is the host of this machine. By "
            "default this machine as `neaptide doctor --bench` measured it."
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Compute the least time of each op: its bytes and operations, by a machine's rates."""
    name, speed, sources, kind = _speed(device)
    with kernels_of_plugins() as (kernels, notes):
        if op is not None:
            check_known(kernels, op)
        rows = [
            row
            for each in ([op] if op is not None else sorted(kernels.ops))
            for row in _rows(kernels, each, speed, kind)
        ]
    if json:
        print_json(
            {"machine": name, "computed": True, "sources": sources, "roofs": rows, "notes": notes}
        )
        return
    print_text(f"computed for {name}, not measured; no kernel is faster")
    print_table(
        [
            ("op", "sample", "bytes", "operations", "least time", "bound by"),
            *(
                (
                    row["op"],
                    row["sample"],
                    _short(row["bytes"], "B"),
                    _short(row["operations"], ""),
                    f"{row['seconds'] * 1e6:.1f} us, computed",
                    row["bound"],
                )
                for row in rows
            ),
        ]
    )
    for rate, source in sources.items():
        print_text(f"{rate}: {source}")
    for note in notes:
        print_text(f"note: {note}")


def _rows(kernels: Kernels, name: str, speed: DeviceSpeed, kind: str) -> Iterator[dict[str, Any]]:
    import torch  # noqa: PLC0415 - `neaptide --help` does not need it

    from neaptide_kernels.registry.roof import roof_of, unvalued, work_of  # noqa: PLC0415 - as above

    spec = kernels.ops[name].spec
    for sample in unvalued(spec, torch.device(kind)):
        arguments = spec.complete(sample.arguments)
        work = work_of(spec, kernels.query(name, arguments), arguments)
        least = roof_of(work, speed)
        yield {
            "op": name,
            "sample": sample.name,
            "bytes": work.moved,
            "operations": work.products + work.others,
            "seconds": least.seconds,
            "bound": least.bound,
        }


def _speed(device: str | None) -> tuple[str, DeviceSpeed, dict[str, str], str]:
    """Return a machine's name, its speed, the sources of its rates, and the kind of device."""
    from neaptide_kernels.registry.roof import DeviceSpeed  # noqa: PLC0415 - it imports torch

    machine = _machine(device)
    rates = machine.rates
    on_host = device == "cpu"
    names = ["host_bandwidth", "host_flops"] if on_host else ["bandwidth", "flops_half"]
    names += [] if on_host else ["flops_single", "launch_device"]
    sources = {name: f"{getattr(rates, name):.4g}, {machine.sources[name]}" for name in names}
    if on_host:
        flops = rates.host_flops
        speed = DeviceSpeed(bandwidth=rates.host_bandwidth, half=flops, single=flops, launch=0.0)
        return f"the host of {machine.name}", speed, sources, "cpu"
    speed = DeviceSpeed(
        bandwidth=rates.bandwidth,
        half=rates.flops_half,
        single=rates.flops_single,
        launch=rates.launch_device,
    )
    return machine.name, speed, sources, "meta"


def _machine(device: str | None) -> Machine:
    from neaptide_toolkit.machine import profiles  # noqa: PLC0415 - `--help` does not need it

    if device is not None and device != "cpu":
        return profiles.load(Path(device) if device.endswith(".json") else device)
    path = profiles.measured_path()
    if not path.exists():
        msg = (
            f"this machine has not been measured; run neaptide doctor --bench, or name a profile "
            f"by --device: {', '.join(profiles.names())}"
        )
        raise UsageError(msg)
    return profiles.load(path)


def _short(number: float, unit: str) -> str:
    for size, prefix in _UNITS:
        if number >= size:
            return f"{number / size:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}" if number else "-"
