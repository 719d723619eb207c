"""Reads one GPU's memory and utilization through NVML, the library of NVIDIA's driver."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import attrs

from .statistics import Running


@attrs.frozen
class Reading:
    """The driver's latest values."""

    used_bytes: int
    """GPU memory in use by all processes."""
    utilization: int | None
    """Percentage of time with a running kernel, in the driver's last period; None if unknown."""


class Nvml:
    """Reads one GPU in a separate thread, so that no call into the driver can delay a step.

    An error of NVML, or a call that takes longer than `patience`, ends the readings; the run
    continues.

    Args:
        uuid: UUID of the GPU or MIG instance, without prefix. A UUID is needed because with
            CUDA_VISIBLE_DEVICES the indices of NVML and CUDA differ.
        interval: seconds between two readings.
        patience: longest duration of a call, and longest wait for the first reading, in seconds.
    """

    def __init__(self, uuid: str, *, interval: float = 0.1, patience: float = 5.0) -> None:
        self.problem: str | None = None
        """The reason why there are no further readings; None if there is no problem."""
        self.utilization = Running()
        """Statistics of the utilization so far, in percent."""
        self._latest: Reading | None = None
        self._interval, self._patience = interval, patience
        self._first = threading.Event()
        self._stop = threading.Event()
        self._idle = threading.Event()
        self._asked = 0.0
        self._thread: threading.Thread | None = None
        try:
            import pynvml  # noqa: PLC0415 - optional: only this plugin uses it
        except ImportError:
            self.problem = 'not installed: pip install "neaptide[nvml]"'
            return
        self._thread = threading.Thread(
            target=self._watch, args=(pynvml, uuid), name="profiler-nvml", daemon=True
        )
        self._asked = time.monotonic()
        self._thread.start()
        if not self._first.wait(patience):
            self.problem = self._silence()

    def reading(self) -> Reading | None:
        """Return the latest reading, at most `interval` old; None after a problem or `close`."""
        if self.problem is not None or self._stop.is_set():
            return None
        # Perhaps the thread could not run, because the process was busy. Give the thread time
        # before the driver is reported as hanging.
        late = time.monotonic() - self._asked > self._patience and not self._idle.is_set()
        if late and not self._idle.wait(self._patience / 10):
            self.problem = self._silence()
            return None
        return self._latest

    def close(self) -> None:
        """Stop the thread; idempotent. A thread whose call hangs is abandoned."""
        self._stop.set()
        if self._thread is not None and self.problem is None:
            self._thread.join(self._patience)

    def _silence(self) -> str:
        return f"no answer from the driver within {self._patience:g} s"

    def _watch(self, nvml: Any, uuid: str) -> None:
        try:
            nvml.nvmlInit()
        except Exception as error:  # noqa: BLE001 - NVML has an error class for each return code
            self._give_up(_reason(error))
            return
        try:
            self._read_until_stopped(nvml, uuid)
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(_reason(error))
        with suppress(Exception):  # all readings are done
            nvml.nvmlShutdown()

    def _read_until_stopped(self, nvml: Any, uuid: str) -> None:
        if nvml.nvmlDeviceGetCount() == 0:
            self._give_up("the driver sees no GPU")
            return
        handle = _handle(nvml, uuid)
        while True:
            used = int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
            utilization = _utilization(nvml, handle)
            if utilization is not None:
                self.utilization.add(utilization)
            self._latest = Reading(used, utilization)
            self._idle.set()
            self._first.set()
            if self.problem is not None or self._stop.wait(self._interval):
                return
            self._asked = time.monotonic()
            self._idle.clear()

    def _give_up(self, problem: str) -> None:
        self.problem = self.problem or problem
        self._idle.set()
        self._first.set()


def _handle(nvml: Any, uuid: str) -> Any:
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except Exception:
        with suppress(Exception):  # raise the first error instead
            return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
        raise


def _utilization(nvml: Any, handle: Any) -> int | None:
    try:
        return int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except Exception:  # noqa: BLE001 - a MIG instance has memory but no utilization
        return None


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
