"""Memory is measured where the system tells, and nothing ends where it does not."""

from __future__ import annotations

from typing import Any

import psutil
import pytest
import torch

from neaptide_toolkit.machine import meter

CPU = torch.device("cpu")


def test_both_ways_to_measure_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    first = meter.sample(CPU).host_bytes
    monkeypatch.setattr(meter, "_statm", missing)
    assert first == pytest.approx(meter.sample(CPU).host_bytes, rel=0.05)


def missing(*_: Any) -> Any:
    raise OSError


def test_without_proc_a_sample_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(*_: Any) -> Any:
        raise psutil.NoSuchProcess(1)

    monkeypatch.setattr(meter, "_statm", missing)
    monkeypatch.setattr(psutil, "Process", no_process)
    assert 0 == meter.sample(CPU).host_bytes
    measured = meter.PeakMeter(CPU)
    measured.exact_host = False  # as where the kernel's mark cannot be reset
    assert 0 == measured.read().host_bytes
