"""The modules of `bench/gpu.py`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The modules of the command, and what it believes to be the device."""
    monkeypatch.syspath_prepend(str(BENCH))
    import gpu
    from first_minutes import record, running, steps

    device = {"name": "a card", "memory_bytes": 1 << 30, "ram_bytes": 1 << 30, "cores": 2}
    monkeypatch.setattr(gpu, "device_of", lambda *_, **__: device)
    monkeypatch.setattr(gpu, "LEAST", 0.05)
    yield SimpleNamespace(gpu=gpu, record=record, running=running, steps=steps, device=device)
    for name in [name for name in sys.modules if name.split(".")[0] in ("gpu", "first_minutes")]:
        del sys.modules[name]
