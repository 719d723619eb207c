"""The driver's view of one GPU through NVML, or the reason there is none."""

from __future__ import annotations

from contextlib import suppress
from typing import Any


class Nvml:
    """Reads the used memory of one GPU; whatever NVML raises ends the readings, nothing else.

    Args:
        uuid: the GPU's, as `"GPU-…"`. Indices of NVML and CUDA differ under CUDA_VISIBLE_DEVICES.
    """

    def __init__(self, uuid: str) -> None:
        self.problem: str | None = None
        """Why there are no readings, or no more; None while all is well."""
        self._nvml: Any = None
        self._handle: Any = None
        try:
            import pynvml  # noqa: PLC0415 - optional: only this plugin knows it
        except ImportError:
            self.problem = 'not installed: pip install "neaptide[nvml]"'
            return
        try:
            pynvml.nvmlInit()
            self._nvml = pynvml
            if pynvml.nvmlDeviceGetCount() == 0:
                self.problem = "the driver sees no GPU"
            else:
                self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except Exception as error:  # noqa: BLE001 - NVML raises one class a return code
            self.problem = _reason(error)

    def used_bytes(self) -> int | None:
        """Return the bytes used on the GPU by all processes; None after a problem or `close`."""
        if self._nvml is None or self.problem is not None:
            return None
        try:
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)
        except Exception as error:  # noqa: BLE001 - as above
            self.problem = _reason(error)
            return None

    def close(self) -> None:
        """Let the driver go; idempotent."""
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            with suppress(Exception):  # the run is over, and every reading is in
                nvml.nvmlShutdown()


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
