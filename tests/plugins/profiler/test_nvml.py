"""NVML in every state of disrepair, through a stand-in for the driver's module."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from neaptide_plugins.profiler.nvml import Nvml, Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

CALLS = ("nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMemoryInfo")
CODES = range(1, 30)
"""Return codes of NVML, each an error class of its own in pynvml."""


class DriverError(Exception):
    """Stands for pynvml.NVMLError, which derives from Exception too."""


class Driver(ModuleType):
    """The part of pynvml that is used; `failing` raises `error` at its call number `after`."""

    def __init__(
        self, failing: str = "", after: int = 0, devices: int = 1, error: Exception | None = None
    ) -> None:
        super().__init__("pynvml")
        self.calls: list[str] = []
        self.uuids: list[str] = []
        self._error = error
        answers = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": devices,
            "nvmlDeviceGetHandleByUUID": "handle",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=12345),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=61),
            "nvmlShutdown": None,
        }
        for name, answer in answers.items():
            setattr(self, name, self._call(name, answer, after if name == failing else None))

    def _call(self, name: str, answer: Any, fails_at: int | None) -> Any:
        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            if name == "nvmlDeviceGetHandleByUUID":
                self.uuids += arguments
            if fails_at is not None and self.calls.count(name) > fails_at:
                raise self._error or DriverError(name)
            return answer

        return call


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that watches the GPU of a driver, reading once a day; ends them all."""
    watching: list[Nvml] = []

    def start(driver: Driver | None, *, interval: float = 86400.0, patience: float = 30.0) -> Nvml:
        monkeypatch.setitem(sys.modules, "pynvml", driver)
        nvml = Nvml("1", interval=interval, patience=patience)
        watching.append(nvml)
        return nvml

    yield start
    for nvml in watching:
        nvml.close()


def ended(nvml: Nvml) -> bool:
    """Return whether the thread comes to its end by itself."""
    assert nvml._thread is not None
    nvml._thread.join(30.0)
    return not nvml._thread.is_alive()


def test_a_driver_that_works_is_read_and_let_go(watch: Any) -> None:
    driver = Driver()
    nvml = watch(driver)
    assert Reading(12345, 61) == nvml.reading()
    assert (1, 61.0) == (nvml.utilization.count, nvml.utilization.mean)
    nvml.close()
    nvml.close()
    assert (None, None) == (nvml.reading(), nvml.problem)
    assert 1 == driver.calls.count("nvmlShutdown")
    assert ended(nvml)


def test_the_gpu_is_asked_for_by_its_uuid(watch: Any) -> None:
    driver = Driver()
    watch(driver)
    assert ["GPU-1"] == driver.uuids


def test_a_mig_instance_has_memory_and_no_utilization(watch: Any) -> None:
    driver = Driver("nvmlDeviceGetUtilizationRates")

    def by_uuid(uuid: str) -> str:
        driver.uuids.append(uuid)
        if not uuid.startswith("MIG-"):
            msg = "Not Found"
            raise DriverError(msg)
        return "instance"

    driver.nvmlDeviceGetHandleByUUID = by_uuid
    nvml = watch(driver)
    assert Reading(12345, None) == nvml.reading()
    assert ["GPU-1", "MIG-1"] == driver.uuids
    assert (None, 0) == (nvml.problem, nvml.utilization.count)


def test_a_missing_module_is_a_reason(watch: Any) -> None:
    nvml = watch(None)
    expected = 'not installed: pip install "neaptide[nvml]"'
    assert (None, expected) == (nvml.reading(), nvml.problem)


@pytest.mark.parametrize("failing", CALLS)
def test_whatever_fails_is_a_reason(watch: Any, failing: str) -> None:
    driver = Driver(failing)
    nvml = watch(driver)
    assert (None, failing) == (nvml.reading(), nvml.problem)
    assert ended(nvml)
    assert (failing != "nvmlInit") == ("nvmlShutdown" in driver.calls)


@pytest.mark.parametrize("failing", CALLS)
@pytest.mark.parametrize("code", CODES)
def test_every_code_of_the_driver_ends_the_readings_alone(
    watch: Any, failing: str, code: int
) -> None:
    nvml = watch(Driver(failing, error=type(f"NVMLError_{code}", (DriverError,), {})(code)))
    assert (None, str(code)) == (nvml.reading(), nvml.problem)


def test_no_gpu_is_a_reason(watch: Any) -> None:
    nvml = watch(Driver(devices=0))
    assert (None, "the driver sees no GPU") == (nvml.reading(), nvml.problem)


def test_a_driver_that_fails_later_is_not_asked_again(watch: Any) -> None:
    driver = Driver("nvmlDeviceGetMemoryInfo", after=2)
    nvml = watch(driver, interval=0.0)
    assert ended(nvml)
    assert (None, "nvmlDeviceGetMemoryInfo") == (nvml.reading(), nvml.problem)
    assert 3 == driver.calls.count("nvmlDeviceGetMemoryInfo")
    assert 2 == nvml.utilization.count


def test_a_driver_that_fails_to_shut_down_fails_alone(watch: Any) -> None:
    nvml = watch(Driver("nvmlShutdown"))
    nvml.close()
    assert None is nvml.problem


def test_an_error_without_a_text_has_a_name(watch: Any) -> None:
    assert "DriverError" == watch(Driver("nvmlInit", error=DriverError())).problem


@pytest.mark.parametrize("hanging", CALLS)
def test_a_driver_that_hangs_at_once_is_left_alone(watch: Any, hanging: str) -> None:
    driver, forever = Driver(), threading.Event()
    setattr(driver, hanging, lambda *_: forever.wait())
    nvml = watch(driver, patience=0.05)
    assert (None, "no answer from the driver within 0.05 s") == (nvml.reading(), nvml.problem)
    nvml.close()  # which does not wait for it
    assert nvml._thread.is_alive()
    forever.set()
    assert ended(nvml)


def test_a_driver_that_hangs_later_is_left_alone(watch: Any) -> None:
    driver, forever, asked = Driver(), threading.Event(), threading.Event()
    answer = driver.nvmlDeviceGetMemoryInfo

    def hang_the_second_time(handle: str) -> Any:
        if "nvmlDeviceGetMemoryInfo" in driver.calls:
            asked.set()
            forever.wait()
        return answer(handle)

    driver.nvmlDeviceGetMemoryInfo = hang_the_second_time
    nvml = watch(driver, interval=0.0, patience=0.2)
    assert asked.wait(30.0)
    while nvml.reading() is not None:
        pass
    assert "no answer from the driver within 0.2 s" == nvml.problem
    forever.set()
    assert ended(nvml)
