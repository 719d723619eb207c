"""NVML in every state of disrepair, through a stand-in for the driver's module."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from neaptide_plugins.profiler.nvml import Nvml

CALLS = ("nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMemoryInfo")


class DriverError(Exception):
    """Stands for pynvml.NVMLError, which derives from Exception too."""


class Driver(ModuleType):
    """The part of pynvml that is used; `failing` raises at its call number `after`."""

    def __init__(self, failing: str = "", after: int = 0, devices: int = 1) -> None:
        super().__init__("pynvml")
        self.calls: list[str] = []
        answers = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": devices,
            "nvmlDeviceGetHandleByUUID": "handle",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=12345),
            "nvmlShutdown": None,
        }
        for name, answer in answers.items():
            setattr(self, name, self._call(name, answer, after if name == failing else None))

    def _call(self, name: str, answer: Any, fails_at: int | None) -> Any:
        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            if fails_at is not None and self.calls.count(name) > fails_at:
                raise DriverError(name)
            return answer

        return call


def install(monkeypatch: pytest.MonkeyPatch, driver: Driver | None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver)


def test_a_driver_that_works_is_read_and_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    install(monkeypatch, driver)
    nvml = Nvml("GPU-1")
    assert (12345, 12345) == (nvml.used_bytes(), nvml.used_bytes())
    nvml.close()
    nvml.close()
    assert None is nvml.used_bytes()
    assert None is nvml.problem
    assert 1 == driver.calls.count("nvmlShutdown")


def test_the_gpu_is_asked_for_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, asked = Driver(), []
    driver.nvmlDeviceGetHandleByUUID = asked.append
    install(monkeypatch, driver)
    Nvml("GPU-1")
    assert ["GPU-1"] == asked


def test_a_missing_module_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    nvml = Nvml("GPU-1")
    nvml.close()
    assert (None, 'not installed: pip install "neaptide[nvml]"') == (
        nvml.used_bytes(),
        nvml.problem,
    )


@pytest.mark.parametrize("failing", CALLS)
def test_whatever_fails_is_a_reason(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    driver = Driver(failing)
    install(monkeypatch, driver)
    nvml = Nvml("GPU-1")
    assert None is nvml.used_bytes()
    assert failing == nvml.problem
    nvml.close()
    assert (failing != "nvmlInit") == ("nvmlShutdown" in driver.calls)


def test_no_gpu_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver(devices=0))
    nvml = Nvml("GPU-1")
    assert (None, "the driver sees no GPU") == (nvml.used_bytes(), nvml.problem)


def test_a_driver_that_fails_later_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver("nvmlDeviceGetMemoryInfo", after=2)
    install(monkeypatch, driver)
    nvml = Nvml("GPU-1")
    assert [12345, 12345, None, None] == [nvml.used_bytes() for _ in range(4)]
    assert 3 == driver.calls.count("nvmlDeviceGetMemoryInfo")


def test_a_driver_that_fails_to_shut_down_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver("nvmlShutdown"))
    nvml = Nvml("GPU-1")
    nvml.close()
    assert None is nvml.problem


def test_an_error_without_a_text_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()

    def nameless() -> None:
        raise DriverError

    driver.nvmlInit = nameless
    install(monkeypatch, driver)
    assert "DriverError" == Nvml("GPU-1").problem
