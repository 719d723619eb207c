"""The driver's view of one GPU through NVML, or the reason there is none."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import attrs

from .statistics import Running


@attrs.frozen
class Reading:
    """What the driver last said."""

    used_bytes: int
    """Used on the GPU by all processes."""
    utilization: int | None
    """Percent of the driver's last period in which a kernel ran; None where it cannot tell."""


class Nvml:
    """Reads one GPU from a thread of its own, so that no call into the driver can hold up a step.

    Whatever NVML raises, and a call that does not come back within `patience`, ends the readings
    and nothing else.

    Args:
        uuid: the GPU's or MIG instance's, without prefix. Indices of NVML and CUDA differ under
            CUDA_VISIBLE_DEVICES.
        interval: seconds between two readings.
        patience: seconds a call may take; as long is waited for the first reading.
    """

    def __init__(self, uuid: str, *, interval: float = 0.1, patience: float = 5.0) -> None:
        self.problem: str | None = None
        """Why there are no readings, or no more; None while all is well."""
        self.utilization = Running()
        """Of all readings so far, in percent."""
        self._latest: Reading | None = None
        self._interval, self._patience = interval, patience
        self._first = threading.Event()
        self._stop = threading.Event()
        self._idle = threading.Event()
        self._asked = 0.0
        self._thread: threading.Thread | None = None
        try:
            import pynvml  # noqa: PLC0415 - optional: only this plugin knows it
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
        """Return the latest reading, `interval` old at most; None after a problem or `close`."""
        if self.problem is not None or self._stop.is_set():
            return None
        # A thread that this process kept from running for long is no hanging driver: let it run.
        late = time.monotonic() - self._asked > self._patience and not self._idle.is_set()
        if late and not self._idle.wait(self._patience / 10):
            self.problem = self._silence()
            return None
        return self._latest

    def close(self) -> None:
        """Let the driver go; idempotent. A call that hangs is left behind in its thread."""
        self._stop.set()
        if self._thread is not None and self.problem is None:
            self._thread.join(self._patience)

    def _silence(self) -> str:
        return f"no answer from the driver within {self._patience:g} s"

    def _watch(self, nvml: Any, uuid: str) -> None:
        try:
            nvml.nvmlInit()
        except Exception as error:  # noqa: BLE001 - NVML raises one class a return code
            self._give_up(_reason(error))
            return
        try:
            self._read_until_stopped(nvml, uuid)
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(_reason(error))
        with suppress(Exception):  # the run is over, and every reading is in
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
        with suppress(Exception):  # the first error is the one that tells
            return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
        raise


def _utilization(nvml: Any, handle: Any) -> int | None:
    try:
        return int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except Exception:  # noqa: BLE001 - a MIG instance has memory but no utilization
        return None


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
