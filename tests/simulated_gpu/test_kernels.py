"""Neaptide's Triton kernels on a device: chosen, in agreement with the reference, in training."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import simulated_gpu
import torch
from on_device import DEVICE, task_on_device
from support import tensors_of

from neaptide import HybridTrainer
from neaptide.cli import main
from neaptide_kernels.catalogue import triton_providers
from neaptide_kernels.registry import KERNELS, Kernels, KernelScope, Provider, disagreements
from neaptide_plugins.adam8bit.optimizer import Adam8bit
from neaptide_plugins.lion8bit.optimizer import Lion8bit
from neaptide_toolkit.testing.tiny import tiny_loss

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("triton", reason="Triton is installed on Linux and Windows only")

from simulated_gpu.triton import launches

PROVIDERS = [
    pytest.param(one, id=one.op if one.name == "triton" else f"{one.op} by {one.name}")
    for one in triton_providers()
]
LEFT_OUT = {"are not contiguous", "is not contiguous", "is left to others"}
"""Why a kernel leaves a sample to another provider; never that there is no Triton or no GPU."""


@pytest.fixture
def kernels() -> Iterator[Kernels]:
    scope = KernelScope(KERNELS)
    for provider in triton_providers():
        scope.add(provider)
    yield KERNELS
    scope.close()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_kernel_agrees_with_the_reference(provider: Provider) -> None:
    spec, tried = KERNELS.ops[provider.op].spec, 0
    for sample in [*spec.samples(DEVICE)][::2]:  # the CPU's test has all, some of them slow
        arguments = spec.complete(sample.arguments)
        query = KERNELS.query(provider.op, arguments)
        answer = provider.supports(query)
        if answer is not True:
            assert any(answer.endswith(reason) for reason in LEFT_OUT), answer
            continue
        first, *others = provider.configs(query) or ({},)
        for config in (first, *others[tried % max(1, len(others)) :][:1]):
            assert [] == disagreements(spec, provider, arguments, config), sample.name
        tried += query.tensors[0][1].elements > 0  # nothing is launched for no rows
    assert tried > 0
    done = launches()
    assert sum(done["interpreted"].values()) >= tried
    assert {} == done["by_reference"]


@pytest.mark.parametrize("op", sorted({provider.op for provider in triton_providers()}))
def test_a_kernel_is_chosen_on_the_device(op: str, kernels: Kernels) -> None:
    arguments = next(iter(KERNELS.ops[op].spec.samples(DEVICE))).arguments
    explained = kernels.explain(op, arguments)
    assert ("triton", "the highest priority") == (explained.chosen, explained.why)


def test_a_table_says_that_its_times_are_of_a_simulated_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = attrs.evolve(KERNELS.ops["dequantize_int8"].spec, large=_small)
    monkeypatch.setattr(KERNELS.ops["dequantize_int8"], "spec", small)
    monkeypatch.setenv("NEAPTIDE_CACHE_DIR", str(tmp_path))
    assert 0 == main(["kernels", "tune", "dequantize_int8", "--device", "cuda"])
    assert "on simulated GPU 0\n" in capsys.readouterr().out
    timings = json.loads((tmp_path / "kernels.json").read_text())["timings"]
    assert timings
    for key, timed in timings.items():
        assert key.startswith("simulated GPU 0|")
        assert {"triton", "torch", "reference"} == {one["provider"] for one in timed}


def _small(device: torch.device) -> Iterator[Any]:
    yield next(iter(KERNELS.ops["dequantize_int8"].spec.samples(device)))


RUNS: dict[str, dict[str, Any]] = {
    "int8": {"int8": {"warmup": "int8", "full": "int8"}},
    "activation-compression": {"activation-compression": {"min_elements": 64, "group": 16}},
    "low-precision-backward": {
        "low-precision-backward": {"min_elements": 64, "min_rows": 1, "even_if_slower": True}
    },
    "predictor": {"predictor-drift": {"min_window": 8}},
    "adam8bit": {},
    "lion8bit": {},
}
OPTIMIZERS = {"adam8bit": Adam8bit, "lion8bit": Lion8bit}
STEPS = {"predictor": 24}
"""Of the others: 8. A program of `adam8bit_step` is interpreted for some 20 ms."""


def trained(
    run: str, *, by_triton: bool
) -> tuple[list[float], dict[str, torch.Tensor], dict[str, int]]:
    torch.manual_seed(1)
    steps = STEPS.get(run, 8)
    config = {
        "train": {"steps": steps, "device": "cuda"},
        "phases": {"warmup": {"steps": steps // 3}, "full": {"steps": 4}, "correct": {"steps": 2}},
        "plugins": {**RUNS[run], **({"triton-kernels": {}} if by_triton else {})},
    }
    task = task_on_device(streams=False)
    optimizer = task.optimizer
    if run in OPTIMIZERS:
        optimizer = OPTIMIZERS[run](task.model.parameters(), lr=1e-3)
    simulated_gpu.reset()
    with HybridTrainer(task.model, optimizer, loss_fn=tiny_loss, config=config) as trainer:
        losses = [trainer.step(batch).loss for batch in task.batches[:steps]]
    weights = {name: value.cpu() for name, value in tensors_of(trainer.model).items()}
    return losses, weights, launches()["interpreted"]


@pytest.mark.parametrize("run", RUNS)
def test_a_model_trained_with_kernels_is_the_one_without(run: str) -> None:
    losses, weights, used = trained(run, by_triton=True)
    plain, others, unused = trained(run, by_triton=False)
    assert used
    assert {} == unused
    assert plain == pytest.approx(losses, rel=1e-5)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, others[name], rtol=1e-3, atol=1e-4)
