"""The allocator's statistics, snapshots and history, by the names that torch's own code calls.

torch's `memory_stats`, `memory_summary`, `_snapshot` and `_record_memory_history` work on them.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from simulated_gpu import _C

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Frames = list[dict[str, Any]]


class History:
    """What the allocators did since they are recorded, and where live memory was allocated."""

    def __init__(self) -> None:
        self.enabled: str | None = None
        self._context: str | None = None
        self._skipped: frozenset[str] = frozenset()
        self._traces: dict[int, deque[dict[str, Any]]] = {}
        self._longest = sys.maxsize
        self._live: dict[int, Frames] = {}

    def record(
        self,
        enabled: str | None,
        context: str | None,
        longest: int,
        skipped: Iterable[str] = (),
        *,
        clear: bool = False,
    ) -> None:
        """Start, change or (where `enabled` is None) stop recording."""
        if enabled not in {None, "state", "all"} or context not in {None, "state", "alloc", "all"}:
            msg = f"expected state or all, not {enabled!r}; None, state, alloc or all: {context!r}"
            raise RuntimeError(msg)
        self.enabled, self._context, self._skipped = enabled, context, frozenset(skipped)
        if clear or enabled is None or longest != self._longest:
            self._traces.clear()
        self._longest = longest
        _C.record_memory(enabled is not None)

    def note(self, events: Sequence[tuple[int, str, int, int, int, int]]) -> None:
        """Add events; called by the thread that caused them."""
        frames = _frames() if self._context else []
        for device, action, address, size, stream, microseconds in events:
            if action == "alloc":
                self._live[address] = frames
            elif action == "free_completed":
                self._live.pop(address, None)
            if self.enabled != "all" or action in self._skipped:
                continue
            kept = frames if action == "alloc" or self._context == "all" else []
            key = "device_free" if action == "oom" else "addr"
            self._trace(device).append(
                {
                    "action": action, key: address, "size": size, "stream": stream,
                    "time_us": microseconds, "frames": kept if self._context != "state" else [],
                }
            )  # fmt: skip

    def snapshot(self, *, traces: bool = True) -> dict[str, Any]:
        """Return the state of all devices in the form of torch's snapshots."""
        segments = _C.segments()
        for segment in segments:
            segment["frames"] = []
            for block in segment["blocks"]:
                used = block["state"] != "inactive"
                block["frames"] = self._live.get(block["address"], []) if used else []
        count = _C.device_count() if traces else 0
        return {
            "segments": segments,
            "device_traces": [list(self._trace(device)) for device in range(count)],
            "allocator_settings": {"expandable_segments": _C.rates(0)["expandable_segments"]},
            "external_annotations": [],
        }

    def _trace(self, device: int) -> deque[dict[str, Any]]:
        if device not in self._traces:
            self._traces[device] = deque(maxlen=self._longest)
        return self._traces[device]


def _frames() -> Frames:
    """Return the lines of the program that are being run, the innermost first."""
    found: Frames = []
    frame = sys._getframe(1).f_back  # noqa: SLF001 - the only way that reads no source
    while frame is not None:
        code = frame.f_code
        found.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    return found


HISTORY = History()


def _record(*given: Any) -> None:
    """Take the arguments in the order in which torch's function gives them."""
    enabled, context, _stacks, longest, clear, _compiled, _annotations, skipped = given
    HISTORY.record(enabled, context, longest, skipped, clear=clear)


def install() -> None:
    """Give `torch._C` what torch's functions for CUDA's allocator call."""
    _C.set_memory_listener(HISTORY.note)
    functions = {
        "_cuda_memoryStats": _C.memory_stats,
        "_cuda_resetPeakMemoryStats": torch.accelerator.reset_peak_memory_stats,
        "_cuda_resetAccumulatedMemoryStats": torch.accelerator.reset_accumulated_memory_stats,
        "_cuda_emptyCache": _C.empty_cache,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_isHistoryEnabled": lambda: HISTORY.enabled is not None,
        "_cuda_record_memory_history": _record,
        "_cuda_memorySnapshot": lambda pool: HISTORY.snapshot(traces=pool is None or pool[2]),
    }
    for name, function in functions.items():
        setattr(torch._C, name, function)  # noqa: SLF001 - torch's Python code calls them there
