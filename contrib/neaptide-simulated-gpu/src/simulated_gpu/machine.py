"""The simulated machine: its rates, its clock, its data."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from simulated_gpu import _C

if TYPE_CHECKING:
    from collections.abc import Iterator

Named = TypeVar("Named", torch.Tensor, torch.Stream)


def configure(
    profile: str | Path | None = None, *, devices: int | None = None, **rates: Any
) -> None:
    """Be the machine of a profile (a JSON file), with some of its numbers changed.

    `rates` are `flops_half` and `flops_single` in FLOP/s; `bandwidth`, `to_device`, `to_host`,
    `peer` and `host_bandwidth` in bytes/s; `launch_host`, `launch_device` and `copy_latency` in
    seconds; `capacity` in bytes; `expandable_segments`. They hold for every device. Raises KeyError
    for an unknown one.
    """
    if devices is not None:
        _C.set_device_count(devices)
    given = json.loads(Path(profile).read_text("utf-8"))["rates"] if profile is not None else {}
    for index in range(_C.device_count()):
        _C.configure(index, {**given, **rates})


def reset() -> None:
    """Set the clock to 0 and forget races, statistics and peaks. Tensors stay."""
    _C.reset()


def statistics() -> dict[str, Any]:
    """Return simulated seconds, the busy seconds of each engine, and what each operation took."""
    return _C.statistics()


@contextmanager
def fake_data(value: float = 1.0) -> Iterator[None]:
    """Give tensors of the device shapes and no data, so that memory of any size can be simulated.

    A value that the host asks for (`item()`) is `value`. What depends on values (`nonzero`) fails.
    Raises RuntimeError where tensors are on the device, at the start or at the end.
    """
    _C.set_fake(True, value)
    try:
        yield
    finally:
        _C.set_fake(False, value)


def name(thing: Named, text: str) -> Named:
    """Call a tensor's memory, or a stream, `text` in reports of races."""
    if isinstance(thing, torch.Tensor):
        _C.name_range(thing.data_ptr(), thing.nbytes, text)
    else:
        _C.name_stream(thing.stream_id, thing.device_index, text)
    return thing


@contextmanager
def timeline(path: str | Path | None = None) -> Iterator[list[tuple[Any, ...]]]:
    """Record every operation: name, stream, engine, start and end in seconds, bytes.

    Written at the end as a Chrome trace to `path` where one is given.
    """
    found: list[tuple[Any, ...]] = []
    _C.set_tracing(True)
    try:
        yield found
    finally:
        _C.set_tracing(False)
        found.extend(_C.trace())
        if path is not None:
            Path(path).write_text(
                json.dumps({"traceEvents": [_event(*one) for one in found]}), "utf-8"
            )


def _event(
    name: str, stream: str, engine: str, start: float, end: float, size: int
) -> dict[str, Any]:
    return {
        "name": name, "ph": "X", "pid": engine, "tid": stream,
        "ts": start * 1e6, "dur": (end - start) * 1e6, "args": {"bytes": size},
    }  # fmt: skip
