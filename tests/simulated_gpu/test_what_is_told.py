"""What commands and plugins say of the device: of its kernels, its memory, its pinned copies."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import simulated_gpu
import torch

from neaptide.cli import main
from neaptide_kernels.chunked_cross_entropy.trials import large
from neaptide_plugins.triton_kernels import SPEC
from neaptide_plugins.triton_kernels.plugin import TritonKernels
from neaptide_toolkit.machine.devices import end_backward
from neaptide_toolkit.machine.facts import Gpu, Torch
from neaptide_verbs.compare import verb
from neaptide_verbs.doctor.hardware import gpus

if TYPE_CHECKING:
    from pathlib import Path


def test_doctor_judges_a_gpu_by_its_memory_kernels_and_pinned_copies() -> None:
    gpu = Gpu(0, "simulated GPU 0", torch.cuda.get_device_properties().total_memory, "9.0")
    found = {each.what: each for each in gpus(Torch("2.13.0", "CUDA 13.0", 1, (gpu,), None), "580")}
    assert {"ok"} == {each.level for each in found.values()}
    assert "compute capability 9.0" in found["cuda:0"].detail
    assert "could be pinned" in found["pinned memory"].detail


def test_doctor_names_a_gpu_that_this_torch_has_no_kernels_for() -> None:
    gpu = Gpu(0, "simulated GPU 0", torch.cuda.get_device_properties().total_memory, "5.0")
    found = {each.what: each for each in gpus(Torch("2.13.0", "CUDA 13.0", 1, (gpu,), None), "580")}
    assert "error" == found["cuda:0"].level
    assert "no kernels for it" in found["cuda:0"].detail


def test_trials_use_the_device_unless_the_cpu_is_named() -> None:
    assert [False, True, False] == [verb._trains_on_cpu(name) for name in ("auto", "cpu", "cuda")]


def test_the_end_of_a_backward_on_the_cpu_asks_nothing_of_the_device() -> None:
    before = simulated_gpu.statistics()["launches"]
    end_backward(torch.device("cpu"))
    assert before == simulated_gpu.statistics()["launches"]
    end_backward(torch.device("cuda"))
    assert before < simulated_gpu.statistics()["launches"]


def test_triton_runs_where_the_device_is() -> None:
    pytest.importorskip("triton", reason="Triton is installed on Linux and Windows only")
    (finding,) = TritonKernels(SPEC.config()).diagnose()
    assert "ok" == finding.level


def test_kernels_are_listed_for_the_device_unless_another_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NEAPTIDE_CACHE_DIR", str(tmp_path))  # a kept list would be shown
    assert 0 == main(["kernels", "list"])
    assert re.search(r"^adam8bit_step +triton ", capsys.readouterr().out, re.MULTILINE)
    assert 2 == main(["kernels", "list", "--device", "xpu"])
    assert "no usable XPU device" in capsys.readouterr().err


def test_measurements_use_the_heads_of_language_models() -> None:
    hidden, weight, *_ = next(large(torch.device("cuda"))).arguments
    assert ((4096, 2048), (32_000, 2048)) == (hidden.shape, weight.shape)
    assert torch.bfloat16 == weight.dtype
