"""What a plan and the ledger say of a run with adapters is what the run takes."""

from __future__ import annotations

import weakref
from itertools import islice
from typing import Any

import pytest
import torch
from support import DEVICE
from torch import nn

import neaptide
from neaptide import HybridTrainer
from neaptide.hooks.enabling import configured
from neaptide_toolkit.dry_run.running import dry_run
from neaptide_toolkit.testing import kinds
from neaptide_toolkit.testing.allocations import counted

KINDS = "neaptide_toolkit.testing.kinds"


@pytest.mark.skipif(DEVICE.type != "cpu", reason="a plan of the CPU")
@pytest.mark.parametrize("base", ["as-is", "bf16", "int8", "nf4"])
@pytest.mark.parametrize("streamed", [False, True])
def test_the_planned_peak_is_that_of_the_run(base: str, *, streamed: bool) -> None:
    plugins: dict[str, Any] = {"layer-streaming": {"resident": 0}} if streamed else {}
    given = {
        "model": {"name": f"{KINDS}:encoder", "options": {"layers": 3, "width": 64}},
        "data": {"name": f"{KINDS}:sequences", "options": {"width": 64}},
        "train": {"batch_size": 8, "device": "cpu"},
        "plugins": {"lora": {"base": base}, **plugins},
    }
    config = configured(given, ())[0]
    with counted() as found, HybridTrainer.from_config(config) as trainer:
        for batch in islice(kinds.sequences(width=64).train, 3):
            trainer.step(batch, phase="full")
    kinds_of_memory = dict(neaptide.plan(None, config, "cpu", ram=64).tiers["RAM"].kinds)
    assert kinds_of_memory.pop("Python, PyTorch and data") > 0
    assert sum(kinds_of_memory.values()) == pytest.approx(found.peak(), rel=0.05)


@pytest.mark.parametrize("streamed", [False, True])
def test_the_ledger_counts_what_is_held_and_what_trains(*, streamed: bool) -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).to(DEVICE)
    plain = sum(one.nbytes for one in model.parameters())
    plugins: dict[str, Any] = {"lora": {"base": "int8", "r": 2}}
    if streamed:
        plugins["layer-streaming"] = {"resident": 0}

    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).mean()  # type: ignore[no-any-return]

    config = {"optimizer": {"name": "adamw"}, "plugins": plugins}
    with HybridTrainer(model, loss_fn=loss_fn, config=config) as trainer:
        trainer.step(torch.ones(2, 64, device=DEVICE))
        ledger = trainer.estimate_memory()
    held = sum(one.nbytes for one in model.parameters())
    trained = sum(one.nbytes for one in model.parameters() if one.requires_grad)
    assert ledger.total(kind="weights") == held < plain / 2
    assert ledger.total(kind="optimizer.state") == pytest.approx(2 * trained, rel=0.05)
    if not streamed:
        assert ledger.total(kind="gradients") == trained


@pytest.mark.parametrize("own", [False, True], ids=["by config", "own optimizer"])
@pytest.mark.parametrize("base", ["bf16", "int8", "nf4"])
def test_weights_that_are_held_in_fewer_bits_are_freed(base: str, *, own: bool) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).to(DEVICE)
    before = [weakref.ref(layer.weight) for layer in model if isinstance(layer, nn.Linear)]
    optimizer = torch.optim.AdamW(model.parameters()) if own else None
    config = {"plugins": {"lora": {"base": base}}}
    with HybridTrainer(
        model, optimizer, loss_fn=lambda model, x: model(x).square().mean(), config=config
    ) as trainer:
        trainer.step(torch.ones(2, 64, device=DEVICE))
        assert [None, None] == [weight() for weight in before]


def test_the_device_never_holds_the_weights_as_they_were() -> None:
    given = {
        "model": {"name": f"{KINDS}:deep", "options": {"layers": 8, "width": 128}},
        "data": {"name": f"{KINDS}:sequences", "options": {"width": 128}},
        "train": {"device": "cpu"},
    }
    peaks = {
        base: dry_run(
            configured({**given, "plugins": {"lora": {"base": base, "r": 1}}}, ())[0], (), "cuda"
        )
        .allocations.peaks("device")["assembly"]
        .bytes
        for base in ("as-is", "int8")
    }
    assert peaks["int8"] < 0.4 * peaks["as-is"]
