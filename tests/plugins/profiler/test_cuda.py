"""A session on CUDA, with stand-ins for the allocator and the driver this machine may not have."""

from __future__ import annotations

import csv
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import structlog
import torch

from neaptide.io.folder import Folder
from neaptide_plugins.profiler.config import ProfilerConfig
from neaptide_plugins.profiler.session import ProfilingSession

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MB = 10**6


@attrs.define
class Gpu:
    """What the allocator and the driver of one GPU say."""

    allocated: int = 100 * MB
    peak: int = 100 * MB
    reserved: int = 300 * MB
    used: int = 900 * MB
    history: list[Any] = attrs.field(factory=list)
    history_on: bool = False

    def stats(self, device: Any) -> dict[str, Any]:
        of = {"current": self.allocated, "peak": self.peak}
        return {
            "allocated_bytes": {"all": of},
            "reserved_bytes": {"all": {"current": self.reserved}},
        }

    def record(self, enabled: str | None = "all", **options: Any) -> None:
        self.history.append(enabled)
        self.history_on = enabled is not None

    def driver(self) -> ModuleType:
        module = ModuleType("pynvml")
        answers = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=self.used),
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=61),
            "nvmlShutdown": lambda: None,
        }
        module.__dict__.update(answers)
        return module


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    properties = SimpleNamespace(uuid="1", total_memory=1000 * MB)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", gpu.stats)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", gpu.record)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", dict)
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: gpu.history_on, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", gpu.driver())
    return gpu


@pytest.fixture
def session(tmp_path: Path) -> Callable[..., ProfilingSession]:
    def start(**settings: Any) -> ProfilingSession:
        model = torch.nn.Linear(2, 2)
        session = ProfilingSession(
            ProfilerConfig(**settings),
            torch.device("cuda", 0),
            Folder(tmp_path),
            structlog.get_logger(),
            lambda _: lambda: None,
            model,
            torch.optim.SGD(model.parameters()),
            4000 * MB,
        )
        session.start()
        return session

    return start


def test_a_row_has_allocator_driver_and_process(
    gpu: Gpu, session: Callable[..., ProfilingSession], tmp_path: Path
) -> None:
    profiled = session()
    gpu.allocated, gpu.peak = 250 * MB, 280 * MB
    profiled.sample(1, "full", "step")
    profiled.close()
    with (tmp_path / "memory.csv").open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert {
        "allocated_bytes": str(250 * MB),
        "peak_bytes": str(280 * MB),
        "reserved_bytes": str(300 * MB),
        "nvml_bytes": str(900 * MB),
        "gpu_utilization": "61",
    } == {name: row[name] for name in row if name in GPU_COLUMNS}
    with (tmp_path / "tiers.csv").open(encoding="utf-8") as file:
        device, _host = csv.DictReader(file)
    assert (str(100 * MB), str(250 * MB), str(280 * MB), "0.280000") == (
        device["initial_bytes"],
        device["final_bytes"],
        device["peak_bytes"],
        device["utilization"],
    )


GPU_COLUMNS = ("allocated_bytes", "peak_bytes", "reserved_bytes", "nvml_bytes", "gpu_utilization")


def test_the_report_has_the_utilization(gpu: Gpu, session: Callable[..., ProfilingSession]) -> None:
    profiled = session()
    profiled.close()
    assert [
        "torch's allocator and RSS",
        "GPU utilization: mean 61 %, max 61 % (NVML)",
    ] == profiled.report().splitlines()[:2]
    assert 61.0 == profiled.metrics()["gpu_utilization"]


def test_a_driver_that_fails_is_named_and_its_columns_stay_empty(
    gpu: Gpu,
    session: Callable[..., ProfilingSession],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: Any) -> None:
        msg = "Insufficient Permissions"
        raise RuntimeError(msg)

    monkeypatch.setattr(sys.modules["pynvml"], "nvmlDeviceGetMemoryInfo", refuse)
    profiled = session()
    profiled.sample(1, "full", "step")
    profiled.close()
    assert "NVML: not available (Insufficient Permissions)" in profiled.report()
    with (tmp_path / "memory.csv").open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert ("", "", str(100 * MB)) == (
        row["nvml_bytes"],
        row["gpu_utilization"],
        row["allocated_bytes"],
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        ({"snapshot_at": (3,)}, ["all", None]),
        ({"snapshot_on_spike": True}, ["all", None]),
        ({"snapshot_history": True}, ["all", None]),
    ],
)
def test_allocations_are_recorded_where_a_snapshot_is_asked_for(
    gpu: Gpu,
    session: Callable[..., ProfilingSession],
    settings: dict[str, Any],
    expected: list[Any],
) -> None:
    profiled = session(**settings)
    profiled.close()
    profiled.close()
    assert expected == gpu.history


def test_a_history_of_the_user_goes_on(gpu: Gpu, session: Callable[..., ProfilingSession]) -> None:
    gpu.history_on = True
    session(snapshot_history=True).close()
    assert ([], True) == (gpu.history, gpu.history_on)


def test_torchs_own_snapshot_lies_beside_the_listing(
    gpu: Gpu, session: Callable[..., ProfilingSession], tmp_path: Path
) -> None:
    profiled = session(snapshot_at=(3,))
    profiled.updated(3, "full")
    profiled.close()
    expected = [f"snapshot-00000003-full-step.{suffix}" for suffix in ("json", "pickle")]
    assert expected == sorted(path.name for path in tmp_path.glob("snapshot-*"))
    assert all(f"snapshot: {name}" in profiled.report() for name in expected)


def test_a_spike_of_the_device_is_seen(gpu: Gpu, session: Callable[..., ProfilingSession]) -> None:
    profiled = session(spike_mb=50.0)
    for step in (1, 2, 3):
        gpu.allocated += 60 * MB * (step == 3)
        profiled.sample(step, "full", "step")
    profiled.close()
    assert [("device", 3, 60 * MB)] == [
        (spike.tier, spike.step, spike.rise) for spike in profiled.account.spikes
    ]
