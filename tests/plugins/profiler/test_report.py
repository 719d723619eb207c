"""The report, and what it says where the driver cannot be asked."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from support import CYCLE, DEVICE, same_tensors, tensors_of, tiny_trainer

from neaptide_plugins.profiler import SPEC
from neaptide_plugins.profiler.nvml import Nvml
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    import pytest


def run(device: torch.device = DEVICE, **settings: Any) -> Any:
    """Return the closed trainer of a profiled run through all phases."""
    config = {"phases": CYCLE, "plugins": {SPEC.name: settings}}
    trainer, batches = tiny_trainer(config, [STEADY_PREDICTOR, SPEC], device=device)
    with trainer:
        for batch in batches[:12]:
            trainer.step(batch)
    return trainer


def test_a_driver_that_is_not_there_is_named_in_the_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = run(torch.device("cpu"))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    trainer.hooks.plugins[SPEC.name]._session._nvml = Nvml("1")  # as on a machine with CUDA
    notes = trainer.report(SPEC.name).splitlines()[:2]
    expected = 'NVML: not available (not installed: pip install "neaptide[nvml]")'
    assert ["no accelerator: RSS only", expected] == notes


def test_without_a_spike_the_report_has_none() -> None:
    assert "spike" not in run(spike_mb=1e6).report(SPEC.name)


def test_looking_on_changes_nothing_of_the_run() -> None:
    trainer, batches = tiny_trainer({"phases": CYCLE}, [STEADY_PREDICTOR])
    with trainer:
        for batch in batches[:12]:
            trainer.step(batch)
    alone, generator = tensors_of(trainer.model), torch.get_rng_state()
    torch.manual_seed(99)
    watched = run()
    assert same_tensors(alone, tensors_of(watched.model))
    assert torch.equal(generator, torch.get_rng_state())
    assert watched.digest() == run(every=3).digest()
