"""What the doctor is told of NVML, through a stand-in for the driver's module."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from neaptide_plugins.profiler import diagnosis

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
CALLS = (
    "nvmlSystemGetCudaDriverVersion",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetName",
)


class DriverError(Exception):
    """Stands for pynvml.NVMLError, which derives from Exception too."""


class Driver(ModuleType):
    """The part of pynvml that is used; `failing` raises."""

    def __init__(self, failing: str = "", name: str | bytes = "NVIDIA H200") -> None:
        super().__init__("pynvml")
        self.calls: list[str] = []
        answers = dict(
            zip(
                CALLS,
                (
                    13010,
                    "580.65.06",
                    2,
                    "handle",
                    SimpleNamespace(total=140 * GIB, free=35 * GIB),
                    (9, 0),
                    name,
                ),
                strict=True,
            )
        )
        for call, answer in {**answers, "nvmlInit": None, "nvmlShutdown": None}.items():
            setattr(self, call, self._call(call, answer, fails=call == failing))

    def _call(self, name: str, answer: Any, *, fails: bool) -> Any:
        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            if fails:
                raise DriverError(name)
            return answer

        return call


def found_with(monkeypatch: pytest.MonkeyPatch, driver: Driver | None) -> list[Any]:
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    return list(diagnosis.findings())


@pytest.mark.parametrize("name", ["NVIDIA H200", b"NVIDIA H200"])
def test_a_driver_that_answers(monkeypatch: pytest.MonkeyPatch, name: str | bytes) -> None:
    driver = Driver(name=name)
    nvml, *gpus = found_with(monkeypatch, driver)
    assert ("ok", "NVML") == (nvml.level, nvml.what)
    assert nvml.detail.endswith("driver 580.65.06 (up to CUDA 13.1)")
    detail = "NVIDIA H200, 140.0 GiB, 35.0 GiB free, compute capability 9.0"
    assert [("GPU 0", detail), ("GPU 1", detail)] == [(gpu.what, gpu.detail) for gpu in gpus]
    assert "nvmlShutdown" == driver.calls[-1]


def test_a_missing_binding_has_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = found_with(monkeypatch, None)
    assert ("note", 'pip install "neaptide[nvml]"') == (found.level, found.advice)


def test_no_driver_is_no_problem_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = found_with(monkeypatch, Driver("nvmlInit"))
    assert ("note", True) == (found.level, found.detail.endswith("no driver: nvmlInit"))


@pytest.mark.parametrize("failing", CALLS)
def test_whatever_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    driver = Driver(failing)
    found = found_with(monkeypatch, driver)[-1]
    assert ("warning", f"the driver failed: {failing}") == (found.level, found.detail)
    assert "nvmlShutdown" == driver.calls[-1]


def test_the_deprecated_distribution_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    info = tmp_path / "pynvml-11.5.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pynvml\nVersion: 11.5.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    first, *_ = found_with(monkeypatch, None)
    assert "warning" == first.level
    assert "pynvml is deprecated" in first.detail
    assert first.advice is not None
    assert first.advice.startswith("pip uninstall pynvml")
