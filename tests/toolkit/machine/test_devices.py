"""What a device lacks, in one line, and where plugins say so: before the first step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args

import pytest
import torch

from neaptide import ConfigError
from neaptide_kernels.accelerator import is_capturing, name_of, sent
from neaptide_plugins.layer_streaming.checks import check_device
from neaptide_plugins.low_precision_backward.config import LowPrecisionBackwardConfig
from neaptide_plugins.low_precision_backward.refusals import check_hardware
from neaptide_plugins.mixed_precision.config import MixedPrecisionConfig
from neaptide_plugins.mixed_precision.precision import resolve
from neaptide_plugins.mixed_precision.refusals import check_fp8
from neaptide_plugins.optimizer_offload.choosing import mechanism
from neaptide_toolkit.machine import devices
from neaptide_toolkit.machine.devices import Capability, capabilities, lacks
from neaptide_toolkit.offload import DONE, Slab, ThreadLane, computed, lane_for

if TYPE_CHECKING:
    from collections.abc import Callable

CPU, XPU, MPS = torch.device("cpu"), torch.device("xpu"), torch.device("mps")
CUDA = torch.device("cuda")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[int, int]], torch.device]:
    """Return a function that gives the device `cuda` a compute capability."""

    def of(capability: tuple[int, int]) -> torch.device:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        return CUDA

    return of


def test_every_capability_is_answered_for_the_cpu() -> None:
    found = capabilities(CPU)
    assert set(get_args(Capability)) == found.keys()
    assert {"float64", "bf16"} <= {name for name, reason in found.items() if reason is None}
    assert found["streams"] == "a CPU has no streams"
    assert found["allocator statistics"] == "no accelerator"


@pytest.mark.parametrize(
    ("device", "capability", "words"),
    [
        (MPS, "streams", "torch has no streams on 'mps'"),
        (MPS, "pinned copies", "torch has no copies to 'mps'"),
        (MPS, "registered memory", "torch cannot page-lock a buffer for 'mps'"),
        (MPS, "allocator statistics", "no statistics of the memory of 'mps'"),
        (MPS, "float64", "'mps' has no float64"),
        (MPS, "fp8", "products in fp8 have not been tried on 'mps'"),
        (MPS, "int8", "products in int8 have not been tried on 'mps'"),
        (MPS, "Triton", "Neaptide has no Triton kernels for mps tensors"),
        (XPU, "registered memory", "torch cannot page-lock a buffer for 'xpu'"),
        (XPU, "fp8", "products in fp8 have not been tried on 'xpu'"),
        (XPU, "Triton", "Neaptide has no Triton kernels for xpu tensors"),
    ],
)
def test_what_is_lacking_is_said_in_one_line(
    device: torch.device, capability: Capability, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neaptide_kernels.support.triton_version", lambda: "3.7.1")
    monkeypatch.setattr(devices, "widest", lambda _: torch.float32)
    reason = lacks(device, capability)
    assert reason is not None
    assert words in reason
    assert "\n" not in reason


@pytest.mark.parametrize("capability", ["streams", "pinned copies", "allocator statistics"])
def test_xpu_has_what_torch_has_for_it(capability: Capability) -> None:
    assert lacks(XPU, capability) is None


def test_the_first_lack_is_the_reason() -> None:
    assert lacks(CPU, "float64", "bf16") is None
    assert lacks(CPU, "float64", "streams", "fp8") == "a CPU has no streams"


@pytest.mark.parametrize(
    ("capability", "lacking"),
    [
        ((7, 0), {"bf16", "fp8", "int8", "Triton"}),
        ((7, 5), {"bf16", "fp8", "Triton"}),
        ((8, 0), {"fp8"}),
        ((9, 0), set()),
    ],
)
def test_a_gpu_has_what_its_compute_capability_says(
    gpu: Any, capability: tuple[int, int], lacking: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neaptide_kernels.support.triton_version", lambda: "3.7.1")
    monkeypatch.setattr(devices, "widest", lambda _: torch.float64)
    found = capabilities(gpu(capability))
    assert lacking == {name for name, reason in found.items() if reason is not None}


def test_the_8_bit_products_of_rocm_are_not_tried(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert lacks(gpu((9, 4)), "fp8") == "products in fp8 have not been tried on ROCm"
    assert lacks(gpu((9, 4)), "bf16") is None


@pytest.mark.parametrize(("is_new", "dtype"), [(True, torch.bfloat16), (False, torch.float16)])
def test_mps_has_bf16_in_a_new_macos(
    monkeypatch: pytest.MonkeyPatch, *, is_new: bool, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda *_: is_new)
    assert is_new == (lacks(MPS, "bf16") is None)
    assert dtype is resolve("auto", MPS)


def test_lanes_are_threads_on_a_cpu_and_refuse_a_device_without_streams() -> None:
    lane = lane_for(CPU, "copies")
    lane.close()
    assert isinstance(lane, ThreadLane)
    assert DONE is computed(MPS)
    with pytest.raises(ValueError, match="no streams on 'mps'"):
        lane_for(MPS, "copies")


@pytest.mark.parametrize("device", [XPU, MPS])
def test_a_buffer_that_cannot_be_registered_is_pageable_and_says_why(device: torch.device) -> None:
    slab = Slab.on_host_of(device, 8192)
    assert (False, 8192) == (slab.pinned, len(slab.flat))
    assert slab.reason == lacks(device, "registered memory")
    assert Slab.on_host_of(device, 8192, pin=False).reason is None


def test_a_buffer_for_a_cpu_needs_no_reason() -> None:
    assert Slab.on_host_of(CPU, 8192).reason is None


def test_streaming_refuses_a_device_without_streams() -> None:
    check_device(CPU)
    with pytest.raises(ValueError, match=r"^blocks cannot be streamed here: torch has no streams"):
        check_device(MPS)


def test_streaming_refuses_a_device_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "widest", lambda _: torch.float64)
    check_device(XPU)
    monkeypatch.setattr(devices, "widest", lambda _: torch.float32)
    with pytest.raises(ValueError, match="the device 'xpu' has no float64"):
        check_device(XPU)


@pytest.mark.parametrize("strategy", ["cpu", "pinned"])
def test_state_is_copied_to_the_host_only_where_there_are_streams(strategy: str) -> None:
    store: Any = SimpleNamespace()
    for device in (CPU, XPU):
        chosen = mechanism(strategy, store, [], device)
        assert chosen is not None
        chosen.close()
    with pytest.raises(ValueError, match="cannot run here: torch has no streams on 'mps'"):
        mechanism(strategy, store, [], MPS)


@pytest.mark.parametrize("device", [XPU, MPS])
@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_products_in_8_bits_are_refused_where_nobody_tried_them(
    device: torch.device, dtype: Any
) -> None:
    config = LowPrecisionBackwardConfig(dtype=dtype, even_if_slower=True)
    words = f"products in {dtype} have not been tried on '{device.type}'; remove the plugin @"
    with pytest.raises(ConfigError, match=words):
        check_hardware(config, device)
    if dtype == "fp8":
        with pytest.raises(ConfigError, match=r'have not been tried .*; use "auto"'):
            check_fp8("full", MixedPrecisionConfig(fp8_even_if_slower=True), device)


def test_sizes_are_of_devices_with_memory_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for device in (CPU, MPS):
        assert (None, None) == (devices.free_bytes(device), devices.total_bytes(device))
    monkeypatch.setattr(torch.xpu, "mem_get_info", lambda _: (3, 8))
    properties = SimpleNamespace(total_memory=8)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda _: properties)
    assert (3, 8) == (devices.free_bytes(XPU), devices.total_bytes(XPU))


def test_the_reserve_of_each_kind_of_device_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[str] = []
    for api in (torch.xpu, torch.mps):
        monkeypatch.setattr(api, "empty_cache", lambda name=api.__name__: emptied.append(name))
    for device in (CPU, torch.device("meta"), XPU, MPS):
        devices.empty_cache(device)
    assert ["torch.xpu", "torch.mps"] == emptied


def test_kernels_ask_the_kind_of_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.xpu, "is_current_stream_capturing", lambda: True, raising=False)
    monkeypatch.setattr(torch.xpu, "get_device_name", lambda: "an XPU")
    kinds = ("cpu", "mixed", "mps", "xpu")
    assert ["xpu"] == [kind for kind in kinds if is_capturing(kind)]
    assert ["cpu", "mixed", "mps", "an XPU"] == [name_of(kind) for kind in kinds]
    tensor = torch.ones(3)
    assert tensor is sent(tensor, CPU)
