"""`torch.cuda` for the simulated device: the functions that a build without CUDA lacks."""

from __future__ import annotations

import functools
import uuid
from typing import Any

import torch

from simulated_gpu import _C
from simulated_gpu.streams import (
    Device,
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    device,
    index_of,
    set_stream,
)


def set_device(wanted: Device) -> None:
    torch.accelerator.set_device_index(index_of(wanted))


class Properties:
    """What `get_device_properties` returns."""

    major, minor = 9, 0
    multi_processor_count = 132
    warp_size = 32
    max_threads_per_multi_processor = 2048

    def __init__(self, index: int) -> None:
        self.name = f"simulated GPU {index}"
        self.uuid = uuid.UUID(int=index)
        self.total_memory = _C.capacity(index)


def get_device_properties(device: Device = None) -> Properties:
    return Properties(index_of(device))


class _Error(int):
    """A code of the driver; 0 is success."""


class Cudart:
    """The functions of CUDA's runtime that register host memory."""

    @staticmethod
    def cudaHostRegister(address: int, size: int, flags: int) -> _Error:  # noqa: N802, ARG004
        return _Error(0 if _C.pin(address, size) else 712)

    @staticmethod
    def cudaHostUnregister(address: int) -> _Error:  # noqa: N802
        return _Error(0 if _C.unpin(address) else 713)

    @staticmethod
    def cudaGetErrorString(error: int) -> str:  # noqa: N802
        return {712: "already mapped", 713: "not mapped"}.get(int(error), f"error {int(error)}")

    @staticmethod
    def cudaMemGetInfo(index: int) -> tuple[int, int]:  # noqa: N802
        return torch.accelerator.get_memory_info(index)


def get_rng_state(device: Device = "cuda") -> torch.Tensor:
    return _C.default_generator(index_of(device)).get_state()


def set_rng_state(state: torch.Tensor, device: Device = "cuda") -> None:
    _C.default_generator(index_of(device)).set_state(state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in range(_C.device_count())]


def set_rng_state_all(states: list[torch.Tensor]) -> None:
    for index, state in enumerate(states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    _C.default_generator(_C.current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    for index in range(_C.device_count()):
        _C.default_generator(index).manual_seed(int(seed))


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    index = index_of(device)
    _C.configure(index, {"capacity": int(fraction * _C.capacity(index))})


def _of_accelerator(name: str) -> Any:
    function = getattr(torch.accelerator, name)

    @functools.wraps(function)
    def asked(device: Device = None) -> Any:
        return function(index_of(device))

    return asked


def _public() -> dict[str, Any]:
    """Return what `torch.cuda` gets, by name."""
    own = (
        Stream, Event, StreamContext, device, current_stream, default_stream, set_stream,
        set_device, get_device_properties, get_rng_state, set_rng_state, get_rng_state_all,
        set_rng_state_all, manual_seed, manual_seed_all, set_per_process_memory_fraction,
    )  # fmt: skip
    return {
        **{each.__name__: each for each in own},
        "stream": StreamContext,
        "synchronize": _of_accelerator("synchronize"),
        "mem_get_info": _of_accelerator("get_memory_info"),
        "is_available": lambda: True,
        "_initialized": True,
        "_is_in_bad_fork": lambda: False,
        "device_count": _C.device_count,
        "current_device": _C.current_device,
        "get_device_name": lambda device=None: Properties(index_of(device)).name,
        "get_device_capability": lambda _=None: (Properties.major, Properties.minor),
        "get_arch_list": lambda: ["sm_90"],
        "is_bf16_supported": lambda *_, **__: True,
        "seed": lambda: _C.default_generator(_C.current_device()).seed(),
        "initial_seed": lambda: _C.default_generator(_C.current_device()).initial_seed(),
        "is_current_stream_capturing": lambda: False,
        "cudart": lambda: Cudart,
        "OutOfMemoryError": torch.OutOfMemoryError,
    }


_STORAGE = torch.UntypedStorage.__new__


def _new_storage(kind: type, *args: Any, device: Device = None, **given: Any) -> Any:
    """Make a storage: torch's constructor knows a CUDA device only in a build with CUDA."""
    if device is None or torch.device(device).type != "cuda":
        return _STORAGE(kind, *args, device=device, **given)
    size = args[0] if args else 0
    return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()


_RESIZE = torch.UntypedStorage.resize_


def _resize_storage(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
    """Resize a storage in place: of the device as `_new_storage`."""
    if storage.device.type != "cuda":
        return _RESIZE(storage, size)
    _C.resize_storage(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage), size)
    return storage


def install() -> None:
    """Give `torch.cuda` the functions of the simulated device."""
    torch.UntypedStorage.__new__ = _new_storage
    torch.UntypedStorage.resize_ = _resize_storage
    for name, value in _public().items():
        setattr(torch.cuda, name, value)
        if hasattr(torch.cuda.random, name):  # libraries call these by both names
            setattr(torch.cuda.random, name, value)
