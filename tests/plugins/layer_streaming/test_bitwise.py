"""A streamed run is the resident run, bit for bit, in every way of streaming."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from streamed_net import WAYS, trained_net
from support import tiny_trainer

from neaptide_plugins.layer_streaming.settings import StreamingSettings
from neaptide_toolkit.testing.parting import same_bits


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_losses_and_weights_are_the_resident_ones(way: str, kind: Any) -> None:
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    losses, weights, _ = trained_net(None, kind, **options)
    found, streamed, _ = trained_net(StreamingSettings(poison=True, **WAYS[way]), kind, **options)
    assert losses == found
    assert [] == [name for name in weights if not same_bits(weights[name], streamed[name])]


@pytest.mark.parametrize("way", [way for way in WAYS if "backward" not in way])
def test_gradients_of_several_backwards_add_up_to_the_bit(way: str) -> None:
    losses, weights, _ = trained_net(None, passes=3)
    found, streamed, _ = trained_net(StreamingSettings(poison=True, **WAYS[way]), passes=3)
    assert losses == found
    assert [] == [name for name in weights if not same_bits(weights[name], streamed[name])]


def test_nothing_is_left_in_use() -> None:
    _, _, streaming = trained_net(StreamingSettings())
    assert streaming is not None
    residency = streaming.residency
    assert [0] * 5 == [block.users for block in residency.blocks]
    assert [None] * 5 == [block.slot for block in residency.blocks]


PLUGIN: dict[str, dict[str, Any]] = {
    "stored": {},
    "clipped": {"clip_norm": 0.1},
    "device": {"optimizer_on": "device"},
    "device, clipped": {"optimizer_on": "device", "clip_norm": 0.1},
    "in backward": {"update": "in_backward"},
    "graph": {"mode": "graph"},
    "some phases": {"phases": ["warmup", "predict"]},
    "some phases, in backward": {"phases": ["full"], "update": "in_backward"},
    "accumulated": {"accumulate": 3},
}


@pytest.mark.parametrize("built", [False, True], ids=["given", "built"])
@pytest.mark.parametrize("way", PLUGIN)
def test_the_plugin_trains_predicts_and_evaluates_as_without_it(way: str, *, built: bool) -> None:
    settings = dict(PLUGIN[way])
    train = {"steps": 30}
    if "clip_norm" in settings:
        train["clip_norm"] = settings.pop("clip_norm")
    plugins: dict[str, Any] = {"ema": {}, "predictor-drift": {"min_window": 8}}
    if "accumulate" in settings:
        plugins["gradient-accumulation"] = {"steps": settings.pop("accumulate")}
    phases = {"warmup": {"steps": 10}, "full": {"steps": 4}, "correct": {"steps": 2}}
    results = []
    for more in ({}, {"layer-streaming": settings}):
        torch.manual_seed(1)
        config = {"train": train, "phases": phases, "plugins": {**plugins, **more}}
        given = {"optimizer": None} if built else {}  # the configuration's is fused
        trainer, batches = tiny_trainer(config, **given)
        with trainer:
            assert built is bool(trainer.optimizer.param_groups[0]["fused"])
            losses = [trainer.step(batch).loss for batch in batches[:30]]
            losses.append(trainer.evaluate(batches[30:]))
            jumps = trainer.state.jumps
        weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        results.append((losses, jumps, weights))
    (plain, made, weights), (streamed, there, others) = results
    assert plain == streamed
    assert made == there
    assert [] == [name for name in weights if not same_bits(weights[name], others[name])]
