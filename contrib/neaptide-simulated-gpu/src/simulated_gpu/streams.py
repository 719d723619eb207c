"""Streams, events and the current device of `torch.cuda`, for the simulated device."""

from __future__ import annotations

from typing import Any, Self

import torch

from simulated_gpu import _C

Device = torch.device | str | int | None


def index_of(device: Device) -> int:
    """Return the index that a device, a name, a number or None (the current one) stands for."""
    if device is None:
        return _C.current_device()
    if isinstance(device, int):
        return device if device >= 0 else _C.current_device()
    index = torch.device(device).index
    return _C.current_device() if index is None else index


class Stream(torch.Stream):
    """A stream of a device, of a pool of 32 as torch has it."""

    def __new__(cls, device: Device = None, priority: int = 0, **given: Any) -> Self:
        if given:
            return super().__new__(cls, **given)
        return super().__new__(cls, torch.device("cuda", index_of(device)), priority=priority)

    @property
    def cuda_stream(self) -> int:
        """A number that stands for the stream; 0 is the default one."""
        return self.stream_id


class Event(torch.Event):
    """An event; `elapsed_time` is of the simulated clock."""

    def __new__(cls, *, enable_timing: bool = False, **_: Any) -> Self:
        device = torch.device("cuda", _C.current_device())
        return super().__new__(cls, device, enable_timing=enable_timing)

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Return the simulated milliseconds from this event to another. Both must be recorded."""
        if not self.event_id or not end_event.event_id:
            msg = "both events must be recorded before the time between them is asked"
            raise ValueError(msg)
        return _C.seconds_between(self.event_id, end_event.event_id) * 1e3


def _known(stream: torch.Stream) -> Stream:
    return Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )


def current_stream(device: Device = None) -> Stream:
    return _known(torch.accelerator.current_stream(index_of(device)))


def default_stream(device: Device = None) -> Stream:
    kind = torch.accelerator.current_stream().device_type
    return Stream(stream_id=0, device_index=index_of(device), device_type=kind)


def set_stream(stream: torch.Stream | None) -> None:
    if stream is not None:
        _C.exchange_device(stream.device_index)
        _C.exchange_stream(stream.stream_id, stream.device_index)


class StreamContext:
    """Makes a stream, and its device, the current ones."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is None:
            return
        self._device = _C.exchange_device(self.stream.device_index)
        self._before = _C.exchange_stream(self.stream.stream_id, self.stream.device_index)

    def __exit__(self, *_: object) -> None:
        if self.stream is None:
            return
        _C.exchange_stream(self._before, self.stream.device_index)
        _C.exchange_device(self._device)


class device:  # noqa: N801 - torch's name
    """Makes a device the current one."""

    def __init__(self, wanted: Device) -> None:
        self.idx = index_of(wanted)

    def __enter__(self) -> Self:
        self._before = _C.exchange_device(self.idx)
        return self

    def __exit__(self, *_: object) -> None:
        _C.exchange_device(self._before)
