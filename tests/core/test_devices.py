"""What torch is asked of a device, by the device given, and for devices that are not here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import pytest
import torch

from neaptide import ConfigError
from neaptide.devices import allocator_count, api_in_use, api_of, has_streams, widest
from neaptide.loop.state import late
from neaptide.run.assembly import choose_device
from neaptide_toolkit.machine.meter import PeakMeter, sample

if TYPE_CHECKING:
    from collections.abc import Iterator

CPU, META = torch.device("cpu"), torch.device("meta")
CUDA, XPU, MPS = torch.device("cuda"), torch.device("xpu"), torch.device("mps")


def test_each_kind_of_device_has_its_module() -> None:
    devices = [CPU, torch.device("cuda:1"), XPU, MPS]
    assert [torch.cpu, torch.cuda, torch.xpu, torch.mps] == [api_of(each) for each in devices]


@pytest.mark.parametrize("nothing", [META, torch.device("hpu"), "mixed"])
def test_there_may_be_no_module(nothing: torch.device | str) -> None:
    assert api_of(nothing) is None


def test_gpus_have_streams_and_mps_has_none() -> None:
    assert [CUDA, XPU] == [each for each in (CPU, META, CUDA, XPU, MPS) if has_streams(each)]


@pytest.mark.parametrize("device", [CPU, META, MPS])
def test_without_counts_nothing_is_recorded_of_the_device(device: torch.device) -> None:
    assert allocator_count(device, "memory_allocated") is None
    assert sample(device).device_bytes is None
    assert PeakMeter(device).read().device_bytes is None


def test_counts_are_those_of_the_kind_of_device(monkeypatch: pytest.MonkeyPatch) -> None:
    reset: list[torch.device] = []
    monkeypatch.setattr(torch.xpu, "memory_allocated", lambda device: 7)
    monkeypatch.setattr(torch.xpu, "max_memory_allocated", lambda device: 9)
    monkeypatch.setattr(torch.xpu, "reset_peak_memory_stats", reset.append)
    meter = PeakMeter(XPU)
    assert [XPU] == reset
    assert (7, 9) == (sample(XPU).device_bytes, meter.read().device_bytes)


def test_without_streams_a_value_is_read_at_once() -> None:
    assert late(torch.tensor(2.5)) == 2.5


@pytest.fixture
def _asked_anew() -> Iterator[None]:
    widest.cache_clear()
    yield
    widest.cache_clear()


def test_sums_are_in_float64_where_the_device_has_it() -> None:
    assert torch.float64 is widest(CPU)


@pytest.mark.usefixtures("_asked_anew")
@pytest.mark.parametrize("error", [TypeError, RuntimeError])
def test_a_device_without_float64_sums_in_float32(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def ones(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr(torch, "ones", ones)
    assert torch.float32 is widest(XPU)


@pytest.mark.usefixtures("_asked_anew")
def test_a_full_device_is_not_taken_for_one_without_float64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ones(*_: object, **__: object) -> NoReturn:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch, "ones", ones)
    with pytest.raises(torch.OutOfMemoryError):
        widest(XPU)


def with_accelerator(monkeypatch: pytest.MonkeyPatch, kind: str, count: int) -> None:
    """Let torch say that this machine has `count` devices of a kind."""

    def current(check_available: bool = False) -> torch.device | None:  # noqa: FBT001, FBT002 - torch's
        return torch.device(kind) if count or not check_available else None

    api = torch.get_device_module(kind)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", current)
    monkeypatch.setattr(api, "is_available", lambda: count > 0)
    monkeypatch.setattr(api, "device_count", lambda: count)


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_auto_is_the_accelerator_that_torch_names(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with_accelerator(monkeypatch, kind, 1)
    assert torch.device(kind) == choose_device("auto", None)
    assert torch.device(kind) == choose_device(kind, None)
    assert torch.device(kind, 0) == choose_device(f"{kind}:0", None)
    assert CPU == choose_device("cpu", None)


def test_auto_is_the_models_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with_accelerator(monkeypatch, "xpu", 1)
    assert CPU == choose_device("auto", torch.nn.Linear(1, 1))
    assert META == choose_device("auto", torch.nn.Linear(1, 1, device="meta"))


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_auto_is_the_cpu_where_the_accelerator_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with_accelerator(monkeypatch, kind, 0)
    assert CPU == choose_device("auto", None)
    with pytest.raises(ConfigError) as raised:
        choose_device(kind, None)
    expected = f"this machine has no usable {kind.upper()} device (got '{kind}') @ train.device"
    assert expected == str(raised.value)


def test_an_index_that_is_not_there_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_accelerator(monkeypatch, "xpu", 2)
    assert torch.device("xpu:1") == choose_device("xpu:1", None)
    with pytest.raises(ConfigError, match=r"has 2 usable XPU devices \(got 'xpu:2'\)"):
        choose_device("xpu:2", None)


def test_an_accelerator_is_in_use_once_it_is_initialized(monkeypatch: pytest.MonkeyPatch) -> None:
    with_accelerator(monkeypatch, "xpu", 1)
    assert api_in_use() is None
    monkeypatch.setattr(torch.xpu, "is_initialized", lambda: True)
    assert torch.xpu is api_in_use()


def test_mps_is_in_use_once_it_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    with_accelerator(monkeypatch, "mps", 0)
    assert api_in_use() is None
    with_accelerator(monkeypatch, "mps", 1)
    assert torch.mps is api_in_use()
