"""A dry run for a GPU predicts the memory that a run takes of a simulated one."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from functools import wraps
from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import simulated_gpu
import torch
from torch import nn

from neaptide import HybridTrainer, Task
from neaptide.hooks.enabling import configured
from neaptide.run.fit import FITTING
from neaptide_toolkit.dry_run.caching import HeldBack
from neaptide_toolkit.dry_run.running import dry_run
from neaptide_toolkit.machine.profiles import Rates
from neaptide_toolkit.offload import mapped_slabs, slab_bytes
from neaptide_toolkit.testing import kinds
from neaptide_verbs.plan.auto.choosing import MARGIN, chosen
from neaptide_verbs.plan.machine import CONTEXT, PlannedMachine

if TYPE_CHECKING:
    from collections.abc import Callable

_ALONE = "NEAPTIDE_TEST_ALONE"
STACKS: dict[str, dict[str, Any]] = {
    "none": {},
    "checkpointing": {"activation-checkpointing": {}},
    "streaming": {"layer-streaming": {"resident": 0}},
    "streaming, in backward": {"layer-streaming": {"resident": 0, "update": "in_backward"}},
    "streaming, inputs in RAM": {
        "layer-streaming": {"resident": 0, "update": "in_backward", "inputs": "host"}
    },
    "streaming, graph": {"layer-streaming": {"resident": 0, "mode": "graph"}},
}
WIDTH = 512


def configuration(stack: str) -> Any:
    options = {"width": WIDTH}
    whole = {
        "model": {"name": f"{kinds.__name__}:deep", "options": options},
        "data": {"name": f"{kinds.__name__}:sequences", "options": options},
        "plugins": STACKS[stack],
        "train": {"device": "cuda"},
    }
    return configured(whole, ())[0]


def taken(config: Any, width: int = WIDTH) -> tuple[int, int, int]:
    """Return the bytes of a run: allocated and reserved on the device, and of slabs."""
    data, before = kinds.sequences(width=width), mapped_slabs()
    gc.collect()  # earlier tests may have left cycles that hold memory
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held, kept = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    with HybridTrainer.from_config(config) as trainer:
        for batch in islice(data.train, 3):
            trainer.step(batch, phase="full")
        slabs = slab_bytes(before)
        peak = torch.cuda.max_memory_allocated() - held
    return peak, torch.cuda.max_memory_reserved() - kept, slabs


@pytest.mark.parametrize("stack", STACKS)
def test_the_memory_is_that_of_the_run(stack: str) -> None:
    config = configuration(stack)
    peak, reserved, slabs = taken(config)
    log = dry_run(config, (), "cuda").allocations
    steps = (found for during, found in log.peaks("device").items() if "full" in during)
    assert max(found.bytes for found in steps) == pytest.approx(peak, rel=0.06)
    assert max(found.bytes for found in log.peaks("pages").values()) == slabs
    assert log.reserved() == pytest.approx(reserved, rel=0.1)


def alone(test: Callable[[], None]) -> Callable[[], None]:
    """Let a test run in a process of its own: earlier tests may have left memory on the device."""

    @wraps(test)
    def other() -> None:
        if os.environ.get(_ALONE) == test.__name__:
            test()
            return
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--simulated-gpu",
            "-q",
            "-p",
            "no:cacheprovider",
        ]
        done = subprocess.run(
            [*command, f"{__file__}::{test.__name__}"],
            env={**os.environ, _ALONE: test.__name__},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:]

    return other


def long_batches(length: int, width: int) -> list[torch.Tensor]:
    return [torch.empty(1, length, width)] * 3


def reserved_by(config: Any, batches: list[torch.Tensor]) -> int:
    """Return the bytes that a run reserves which steps as `trainer.fit` does."""
    with HybridTrainer.from_config(config) as trainer:
        trainer.run.stash.set(FITTING, object())
        for batch in batches:
            trainer.step(batch, phase="full")
        trainer.run.stash.set(FITTING, None)
        return torch.cuda.max_memory_reserved()


@alone
def test_memory_that_a_copy_still_uses_is_not_taken_again() -> None:
    sizes = {"length": 8_192, "width": WIDTH}
    streaming = {"resident": 0, "update": "in_backward", "inputs": "host"}
    whole = {
        "model": {"name": f"{kinds.__name__}:deep", "options": {"width": WIDTH, "layers": 4}},
        "optimizer": {"name": "sgd"},  # AdamW's step makes the host wait
        "data": {"name": f"{__name__}:long_batches", "options": sizes},
        "plugins": {"layer-streaming": streaming},
        "train": {"device": "cuda", "check_finite": False},
    }
    config, rates = configured(whole, ())[0], simulated_gpu.rates()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    with simulated_gpu.fake_data():
        taken = reserved_by(config, long_batches(**sizes)) - before
        gc.collect()
    given = Rates(**{field.name: rates[field.name] for field in attrs.fields(Rates)})
    log = dry_run(config, [given], "cuda").allocations
    assert log.reserved() == pytest.approx(taken, rel=0.01)
    log.held = HeldBack()  # as if no copy had used anything
    assert log.reserved() < 0.95 * taken


@alone
def test_what_a_plan_chooses_trains_on_the_device_that_it_fills() -> None:
    whole = {
        "model": {"name": f"{kinds.__name__}:deep", "options": {"width": WIDTH}},
        "data": {"name": f"{kinds.__name__}:sequences", "options": {"width": WIDTH}},
        "plugins": {"layer-streaming": {"max_active_layers": "auto", "optimizer_slots": "auto"}},
        "train": {"device": "cuda"},
    }
    rates, room = simulated_gpu.rates(), 100 * 2**20
    given = Rates(**{field.name: rates[field.name] for field in attrs.fields(Rates)})
    device = int((room + CONTEXT) / (1 - MARGIN))
    machine = PlannedMachine(name="small", device=device, host=2**36, rates=given)
    config, made = chosen(configured(whole, ())[0], machine)
    planned = made.peak_bytes["device"] - CONTEXT
    assert made.fits
    assert 0.85 * room < planned <= room
    assert 0 < config.plugins["layer-streaming"].resident < 6
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    simulated_gpu.configure(capacity=before + room)
    try:
        taken = reserved_by(config, kinds.sequences(width=WIDTH).train[:3]) - before
    finally:
        simulated_gpu.configure(capacity=int(given.capacity))
    assert planned == pytest.approx(taken, rel=0.04)


def seconds(config: Any) -> float:
    """Return the simulated time of a step, after the steps that compare splits of the batch."""
    with HybridTrainer.from_config(config) as trainer:
        trainer.run.stash.set(FITTING, object())  # as `trainer.fit`, which a plan is of
        for batch in islice(kinds.sequences(width=WIDTH).train, 4):
            torch.cuda.synchronize()
            start = simulated_gpu.statistics()["seconds"]
            trainer.step(batch, phase="full")
            torch.cuda.synchronize()
            taken = simulated_gpu.statistics()["seconds"] - start
    return taken


@pytest.mark.parametrize("stack", STACKS)
def test_the_time_of_a_step_is_the_simulators(stack: str) -> None:
    config, rates = configuration(stack), simulated_gpu.rates()
    given = Rates(**{field.name: rates[field.name] for field in attrs.fields(Rates)})
    assert dry_run(config, [given], "cuda").times[0].seconds == pytest.approx(
        seconds(config), rel=0.1
    )


def recurrent(kind: str, **options: Any) -> Task:
    layer = getattr(nn, kind)(128, 128, 2, batch_first=True, **options)
    return Task(layer, lambda model, batch: model(batch)[0].square().mean())


MODELS: dict[str, dict[str, Any]] = {
    "RNN": {"name": f"{__name__}:recurrent", "options": {"kind": "RNN"}},
    "GRU": {"name": f"{__name__}:recurrent", "options": {"kind": "GRU"}},
    "LSTM": {"name": f"{__name__}:recurrent", "options": {"kind": "LSTM"}},
    "LSTM, both directions": {
        "name": f"{__name__}:recurrent",
        "options": {"kind": "LSTM", "bidirectional": True},
    },
    "experts that choose rows": {"name": f"{kinds.__name__}:experts", "options": {"width": 128}},
}


@pytest.mark.parametrize("plugins", [{}, {"gradient-accumulation": {"steps": 2}}], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_the_memory_of_layers_that_a_gpu_computes_in_its_own_way(
    model: str, plugins: dict[str, Any]
) -> None:
    whole = {
        "model": MODELS[model],
        "data": {"name": f"{kinds.__name__}:sequences", "options": {"width": 128}},
        "plugins": plugins,
        "train": {"device": "cuda"},
    }
    config = configured(whole, ())[0]
    peak, _, _ = taken(config, width=128)
    log = dry_run(config, (), "cuda").allocations
    assert max(found.bytes for found in log.peaks("device").values()) == pytest.approx(
        peak, rel=0.03
    )
