"""The simulated machine: its rates, its clock, its data."""

from __future__ import annotations

import json
import weakref
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from simulated_gpu import _C

if TYPE_CHECKING:
    from collections.abc import Iterator

Named = TypeVar("Named", torch.Tensor, torch.Stream)

_LARGEST = 1e18
_FROM_ZERO = ("launch_host", "launch_device", "copy_latency", "capacity")


def configure(
    profile: str | Path | None = None, *, devices: int | None = None, **changed: Any
) -> None:
    """Be the machine of a profile (a JSON file), with some of its numbers changed.

    Rates are `flops_half`, `flops_single` and `host_flops` in FLOP/s; `bandwidth`, `to_device`,
    `to_host`, `peer`, `host_bandwidth`, `disk_read` and `disk_write` in bytes/s; `launch_host`,
    `launch_device` and `copy_latency` in seconds; `capacity` in bytes; `expandable_segments`. They
    hold for every device. Raises KeyError for an unknown one and ValueError for a value that no
    machine has; then nothing is changed. A profile has its rates in an object `rates`; its other
    keys are not read.
    """
    given = {} if profile is None else read_profile(Path(profile))
    given |= _checked(changed, "configure")
    if devices is not None:
        if type(devices) is not int:
            msg = f"configure: devices must be a whole number, not {devices!r}"
            raise ValueError(msg)
        _C.set_device_count(devices)
    for index in range(_C.device_count()):
        _C.configure(index, given)


def rates(device: int = 0) -> dict[str, Any]:
    """Return the numbers of a device by the names that `configure` takes."""
    return _C.rates(device)


def read_profile(path: Path) -> dict[str, Any]:
    """Return the rates of a profile; ValueError if the file is none."""
    try:
        profile = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        msg = f"{path}: not JSON ({error})"
        raise ValueError(msg) from None
    found = profile.get("rates") if isinstance(profile, dict) else None
    if not isinstance(found, dict):
        msg = f"{path}: not a profile: an object with an object 'rates' is needed"
        raise ValueError(msg)  # noqa: TRY004 - the file is wrong, not the caller's type
    return _checked(found, str(path))


def _checked(given: dict[str, Any], where: str) -> dict[str, Any]:
    known = rates()
    for name, value in given.items():
        if name not in known:
            msg = f"{where}: there is no rate {name!r}; there is {', '.join(known)}"
            raise KeyError(msg)
        least = 0 if name in _FROM_ZERO else 1
        if name == "expandable_segments":
            if not isinstance(value, bool):
                msg = f"{where}: {name} must be true or false, not {value!r}"
                raise ValueError(msg)
        elif type(value) not in (int, float) or not least <= value < _LARGEST:
            msg = f"{where}: {name} must be a number from {least} to {_LARGEST:g}, not {value!r}"
            raise ValueError(msg)
    whole = {"capacity": int(given["capacity"])} if "capacity" in given else {}
    return {**given, **whole}


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
    Raises RuntimeError where tensors are on the device, at the start or at the end. Where the block
    ends by an error that holds such tensors, data are real again when they are gone; until then
    nothing new can be made on the device.
    """
    _C.set_fake(True, value)
    try:
        yield
    except BaseException:
        _C.end_fake_later()
        raise
    _C.set_fake(False, value)


def use_shape_cache(on: bool) -> None:  # noqa: FBT001
    """Say whether shapes of fake results are computed once for equal calls (so it is) or each time.

    The cache makes fake data faster and changes nothing else.
    """
    _C.use_shape_cache(on)


def name(thing: Named, text: str) -> Named:
    """Call a tensor's memory, or a stream, `text` in reports of races.

    The memory has that name until its storage is freed.
    """
    if isinstance(thing, torch.Tensor):
        _C.name_range(thing.data_ptr(), thing.nbytes, text)
        if not thing.is_cuda:  # a device's block ends after the report that it was freed early
            memory = thing.untyped_storage()
            weakref.finalize(memory, _C.forget_name, thing.data_ptr()).atexit = False
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
