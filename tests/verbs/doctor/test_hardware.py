"""What is said of GPUs, processor and memory, for machines other than this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch as real_torch

from neaptide_toolkit.machine.cgroups import MemoryGroup
from neaptide_toolkit.machine.facts import Gpu, Memory, Processor, Torch
from neaptide_verbs.doctor import hardware

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from neaptide import Finding

GIB = 1 << 30


def torch_of(build: str, threads: int = 2, problem: str | None = None) -> Torch:
    return Torch("2.13.0", build, threads, (), problem)


def one(found: Iterable[Finding], what: str) -> Finding:
    (finding,) = [finding for finding in found if finding.what == what]
    return finding


@pytest.mark.parametrize(
    ("torch", "driver", "level", "words"),
    [
        (torch_of("CPU"), None, "note", "none: training runs on the CPU"),
        (torch_of("CPU"), "580.65.06", "warning", "this torch is built for the CPU"),
        (torch_of("CUDA 13.0"), None, "note", "none: training runs on the CPU"),
        (torch_of("CUDA 13.0", problem="too old"), "470.1", "warning", "finds no GPU: too old"),
    ],
)
def test_the_driver_and_torch_have_to_fit(
    torch: Torch, driver: str | None, level: str, words: str
) -> None:
    found = one(hardware.gpus(torch, driver), "driver")
    assert level == found.level
    assert words in found.detail
    assert (found.level == "warning") == (found.advice is not None)


@pytest.mark.parametrize(
    ("capability", "built_for", "runs"),
    [
        ("9.0", ["sm_80", "sm_90"], True),
        ("8.9", ["sm_80", "sm_90"], True),
        ("7.0", ["sm_75", "sm_80"], False),
        ("12.0", ["sm_80", "sm_90a"], False),
        ("12.0", ["sm_80", "compute_90"], True),
        ("6.1", ["sm_50", "compute_70"], False),
        ("10.3", ["sm_100"], True),
        ("9.0", [], False),
        ("9.0", ["gfx942"], False),
    ],
)
def test_which_kernels_run_on_which_gpu(
    capability: str, built_for: list[str], *, runs: bool
) -> None:
    assert runs == hardware.runs_on(capability, built_for)


@pytest.mark.parametrize(
    ("quota", "threads", "level", "advice"),
    [
        (None, 8, "ok", None),
        (None, 9, "warning", "export OMP_NUM_THREADS=8"),
        (1.5, 8, "warning", "export OMP_NUM_THREADS=2"),
        (1.5, 2, "ok", None),
    ],
)
def test_more_threads_than_cpus_cost(
    quota: float | None, threads: int, level: str, advice: str | None
) -> None:
    cpu = Processor("x", 16, 8, quota)
    found = one(hardware.processor(cpu, torch_of("CPU", threads)), "torch threads")
    assert (level, advice) == (found.level, found.advice)


def test_a_machine_that_says_nothing_is_no_error(tmp_path: Path) -> None:
    ram = Memory(None, None, None, None, None, None)
    cpu = Processor(None, None, None, None)
    shared = tmp_path / "missing"
    found = [*hardware.memory(ram, shared), *hardware.processor(cpu, torch_of("CPU"))]
    assert {"ok", "note"} == {finding.level for finding in found}
    assert "no limit (ulimit -l)" == one(found, "locked memory").detail
    assert "note" == one(found, str(shared)).level


@pytest.mark.parametrize(
    ("group", "level", "detail"),
    [
        (None, "ok", "64.0 GiB, 32.0 GiB of it free for this process"),
        (MemoryGroup(8 * GIB, 2 * GIB), "ok", "8.0 GiB, 2.0 GiB of it free for this process"),
        (MemoryGroup(40 * GIB, GIB), "warning", "40.0 GiB, 1.0 GiB of it free for this process"),
    ],
)
def test_the_effective_limit_is_the_smaller_one(
    tmp_path: Path, group: MemoryGroup | None, level: str, detail: str
) -> None:
    ram = Memory(64 * GIB, 32 * GIB, group, 0, 0, 8 << 20)
    found = list(hardware.memory(ram, tmp_path))
    effective = one(found, "effective limit")
    assert (level, detail) == (effective.level, effective.detail)
    assert "8.0 MiB (ulimit -l)" == one(found, "locked memory").detail


def test_a_gpu_of_the_processor_shares_its_memory() -> None:
    gpu = Gpu(0, "GPU of the processor", 8 << 30, "", "mps")
    torch = Torch("2.13.0", "MPS", 2, (gpu,), None)
    found = list(hardware.gpus(torch, None))
    assert ("ok", "GPU of the processor, 8.0 GiB, shared with the processor") == (
        one(found, "mps:0").level,
        one(found, "mps:0").detail,
    )
    assert "torch has no copies to 'mps'" in one(found, "pinned memory").detail


def test_a_gpu_without_a_compute_capability_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(1, "an XPU", 8 << 30, "", "xpu")
    monkeypatch.setattr(real_torch.xpu, "mem_get_info", lambda _: (6 << 30, 8 << 30))
    found = one(hardware.gpus(Torch("2.13.0", "XPU 1", 2, (gpu,), None), None), "xpu:1")
    assert ("ok", "an XPU, 8.0 GiB, 6.0 GiB free") == (found.level, found.detail)
