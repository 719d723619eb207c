"""A dry run takes the memory that the run takes."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch

from neaptide import HybridTrainer
from neaptide.hooks.enabling import configured
from neaptide_toolkit.dry_run.running import dry_run
from neaptide_toolkit.machine import profiles
from neaptide_toolkit.offload import mapped_slabs, slab_bytes
from neaptide_toolkit.testing import kinds
from neaptide_toolkit.testing.allocations import counted

if TYPE_CHECKING:
    from pathlib import Path

KINDS = kinds.__name__
MODELS: dict[str, dict[str, Any]] = {
    "encoder": {
        "model": {"name": f"{KINDS}:encoder"},
        "data": {"name": f"{KINDS}:sequences"},
    },
    "deep": {
        "model": {"name": f"{KINDS}:deep"},
        "data": {"name": f"{KINDS}:sequences", "options": {"width": 256}},
    },
    "convolutions": {
        "model": {"name": f"{KINDS}:convolutions"},
        "data": {"name": f"{KINDS}:images"},
    },
}
STACKS: dict[str, dict[str, Any]] = {
    "none": {},
    "checkpointing": {"activation-checkpointing": {}},
    "streaming": {"layer-streaming": {"optimizer_on": "cpu"}},
    "streaming, optimizer on the device": {"layer-streaming": {"optimizer_on": "device"}},
    "streaming, in backward": {"layer-streaming": {"update": "in_backward"}},
    "streaming, graph": {"layer-streaming": {"mode": "graph"}},
    "mixed precision": {"mixed-precision": {}},
    "accumulation": {"gradient-accumulation": {"steps": 2}},
    "ema": {"ema": {}},
}
CASES = [
    *(("encoder", stack) for stack in STACKS),
    ("deep", "none"),
    ("deep", "streaming, in backward"),
    ("convolutions", "none"),
    ("convolutions", "checkpointing"),
]


def config_of(model: str, plugins: dict[str, Any]) -> Any:
    whole = {**MODELS[model], "plugins": plugins, "train": {"batch_size": 8, "device": "cpu"}}
    return configured(whole, ())[0]


def measured(config: Any) -> tuple[int, int]:
    """Return the peak of torch's allocator, without data, and the bytes of slabs, of a real run."""
    named = config.data.name.partition(":")[2]
    data = getattr(kinds, named)(**config.data.options)
    before = mapped_slabs()
    with counted() as found, HybridTrainer.from_config(config) as trainer:
        for batch in islice(data.train, 3):
            trainer.step(batch, phase="full")
        trainer.evaluate(data.validation or ())
        slabs = slab_bytes(before)
    return found.peak(), slabs


def most(done: Any, *places: Any) -> int:
    return max(peak.bytes for peak in done.allocations.peaks(*places).values())


@pytest.mark.parametrize(("model", "stack"), CASES)
def test_the_peak_is_that_of_the_run(model: str, stack: str) -> None:
    config = config_of(model, STACKS[stack])
    peak, slabs = measured(config)
    done = dry_run(config, (), "cpu")
    assert most(done, "device", "host") == pytest.approx(peak, rel=0.03)
    assert most(done, "pages") == slabs


@pytest.mark.parametrize("name", ["recurrent", "experts"])
def test_models_that_depend_on_values_are_planned(name: str) -> None:
    MODELS[name] = {
        "model": {"name": f"{KINDS}:{name}", "options": {"width": 128}},
        "data": {"name": f"{KINDS}:sequences"},
    }
    done = dry_run(config_of(name, {}), (), "cpu")
    assert most(done, "device") > sum(p.nbytes for p in torch.nn.LSTM(1, 1).parameters())


def test_streamed_weights_are_in_ram_and_slots_on_the_device() -> None:
    config = config_of("deep", STACKS["streaming"])
    done = dry_run(config, [profiles.load("rtx4090").rates], "cuda")
    weights = 6 * (2 * 4 * 256 * 256 + (4 + 1 + 2) * 256) * 4
    assert done.allocations.peaks("pages")["full update"].kinds["weights"] >= weights
    assert "weights" not in done.allocations.peaks("device")["full update"].kinds
    (times,) = done.times
    assert {"compute", "to device", "to host"} <= times.busy.keys()
    assert times.seconds >= max(times.busy.values())


@pytest.mark.parametrize("stack", ["streaming", "streaming from disk"])
def test_machines_that_are_counted_together_have_the_times_of_each_alone(
    stack: str, tmp_path: Path
) -> None:
    settings = dict(STACKS["streaming"])
    if stack == "streaming from disk":
        settings["layer-streaming"] = {
            "tier": "disk", "path": str(tmp_path), "update": "in_backward", "ram_gib": 0.001,
            "endurance_days": 1,
        }  # fmt: skip
    config = config_of("deep", settings)
    rates = [profiles.load(name).rates for name in ("t4", "rtx4090", "h200")]
    together = dry_run(config, rates, "cuda").times
    for one, times in zip(rates, together, strict=True):
        (alone,) = dry_run(config, [one], "cuda").times
        assert times == alone
    assert 3 == len({one.seconds for one in together})


def test_a_dry_run_leaves_nothing_changed() -> None:
    resize, generator = torch.UntypedStorage.resize_, torch.random.get_rng_state()
    dry_run(config_of("encoder", {}), (), "cpu")
    assert torch.UntypedStorage.resize_ is resize
    assert torch.equal(torch.ones(3) + 1, torch.full((3,), 2.0))
    assert generator.shape == torch.random.get_rng_state().shape
