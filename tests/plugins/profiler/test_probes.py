"""What a sample of memory counts, and its peaks."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from support import plugin_with, stranger, tiny_trainer, touched

from neaptide import hookimpl
from neaptide_plugins.profiler import SPEC
from neaptide_plugins.profiler.probes import ByteSample, Probe, ResidentSet


def test_a_device_sample_counts_on_both_tiers() -> None:
    sample = ByteSample(5, 9, 12, 7, 8, None, None)
    assert (("device", 5, 9), ("host", 7, 8)) == sample.tiers()


def test_the_host_has_what_the_process_may_have_of_it() -> None:
    cpu, total = torch.device("cpu"), psutil.virtual_memory().total
    assert [{"host": total}, {"host": 10**9}] == [
        Probe(cpu).capacities(),
        Probe(cpu, host_bytes=10**9).capacities(),
    ]


def test_the_resident_set_is_the_one_psutil_reads() -> None:
    fast, slow = ResidentSet(), ResidentSet("/nonexistent")
    assert pytest.approx(slow.read()[0], rel=0.2) == fast.read()[0]
    fast.close()
    fast.close()
    assert 0 < fast.read()[0]


def clear_high_water_mark() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


@pytest.mark.skipif(not clear_high_water_mark(), reason="the kernel's mark cannot be reset here")
def test_what_was_freed_before_the_sample_shows_in_the_mark() -> None:
    probe = Probe(torch.device("cpu"))
    clear_high_water_mark()
    before = probe.sample()
    touched(20_000_000)  # 80 MB, given back at once
    after = probe.sample()
    assert before.rss_peak_bytes is not None
    assert after.rss_peak_bytes is not None
    assert after.rss_bytes - before.rss_bytes < 20e6
    assert after.rss_peak_bytes - before.rss_peak_bytes > 60e6


@pytest.mark.skipif(not clear_high_water_mark(), reason="the kernel's mark cannot be reset here")
def test_a_peak_within_a_backward_is_the_backwards(tmp_path: Path) -> None:
    calls = []

    def around_backward(self: Any, run: Any) -> Any:
        def backward(inner: Any, **arguments: Any) -> None:
            calls.append(len(calls))
            if len(calls) == 6:  # the mark was reset after the first update of the phase
                touched(20_000_000)  # 80 MB, given back at once
            inner(**arguments)

        return backward

    hungry = stranger(plugin_with(around_backward=hookimpl(around_backward)), "hungry")
    config = {"run": {"dir": str(tmp_path)}, "plugins": {"profiler": {}}}
    trainer, batches = tiny_trainer(config, [SPEC, hungry])
    with trainer:
        for batch in batches[:8]:
            trainer.step(batch)
    with (tmp_path / "plugins/profiler/phases.csv").open(encoding="utf-8") as file:
        peaks = {row["moment"]: int(row["peak_bytes"]) for row in csv.DictReader(file)}
    assert peaks["backward"] == peaks["all"]
    assert peaks["backward"] - peaks["forward"] > 60e6
    assert peaks["backward"] - peaks["step"] > 60e6


@pytest.mark.skipif(not torch.cuda.is_available(), reason="asks torch's CUDA allocator")
def test_the_allocator_agrees_with_torch() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    held = torch.ones(1_000_000, device=device)
    sample = Probe(device).sample()
    assert held.nbytes <= torch.cuda.memory_allocated(device)
    assert (
        torch.cuda.memory_allocated(device),
        torch.cuda.max_memory_allocated(device),
        torch.cuda.memory_reserved(device),
    ) == sample[:3]
