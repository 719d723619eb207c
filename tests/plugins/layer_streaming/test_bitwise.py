"""A streamed run is the resident run, bit for bit, in every way of streaming."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import tiny_trainer
from torch import nn
from torch.nn import functional

from neaptide_plugins.layer_streaming.settings import StreamingSettings
from neaptide_plugins.layer_streaming.streaming import Streaming
from neaptide_toolkit.recompute import find_blocks


class Block(nn.Module):
    """Dropout, a tied weight, an unused and a frozen parameter, keywords, a dict returned."""

    def __init__(self, width: int, tied: nn.Parameter | None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.1)
        self.unused = nn.Parameter(torch.ones(3))
        self.tied = tied

    def forward(
        self, x: torch.Tensor, *, memory: torch.Tensor | None = None, scale: float = 1.0
    ) -> dict[str, Any]:
        hidden = self.down(functional.gelu(self.up(self.norm(x))))
        if self.tied is not None:
            hidden = hidden @ self.tied
        if memory is not None:
            hidden = hidden + memory
        return {"x": x + scale * self.drop(hidden), "scale": scale}


class Net(nn.Module):
    """Five blocks, of which one may be skipped and the first is used twice."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        tied = nn.Parameter(torch.randn(width, width) * 0.1)
        self.blocks = nn.ModuleList(Block(width, tied if i in (1, 3) else None) for i in range(5))
        self.blocks[2].up.weight.requires_grad_(False)
        self.memory, self.head = nn.Linear(width, width), nn.Linear(width, 11)

    def forward(self, tokens: torch.Tensor, skip: int | None = None) -> torch.Tensor:
        x = self.embed(tokens)
        memory = self.memory(x.mean(1, keepdim=True))
        for index, block in enumerate(self.blocks):
            if index != skip:
                given = memory if index % 2 else None
                x = block(x, memory=given, scale=1 + index / 10)["x"]
        return self.head(self.blocks[0](x)["x"])


def trained(
    settings: StreamingSettings | None,
    kind: Any = torch.optim.AdamW,
    passes: int = 1,
    **options: Any,
) -> tuple[list[float], dict[str, torch.Tensor], Streaming | None]:
    """Train six steps; return losses and weights."""
    torch.manual_seed(0)
    model = Net()
    optimizer = kind([p for p in model.parameters() if p.requires_grad], lr=1e-2, **options)
    device = torch.device("cpu")
    streaming = None
    if settings is not None:
        streaming = Streaming(model, find_blocks(model), optimizer, device, settings)
    losses = []
    for skip in (None, None, 2, None, 0, None):
        for _ in range(passes):
            tokens = torch.randint(0, 11, (4, 6))
            loss = functional.cross_entropy(model(tokens, skip).flatten(0, 1), tokens.flatten())
            loss.backward()
            losses.append(loss.item())
            if streaming is not None:
                streaming.gradients.flush()
        if streaming is None:
            optimizer.step()
        else:
            streaming.step()
            streaming.gradients.drop()
        optimizer.zero_grad()
    if streaming is not None:
        streaming.close()
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    return losses, weights, streaming


WAYS: dict[str, dict[str, Any]] = {
    "two slots": {},
    "three slots, two ahead": {"max_active_layers": 3, "prefetch_distance": 2},
    "nothing ahead": {"prefetch_distance": 0},
    "device": {"on_device": True},
    "one slot for state": {"on_device": True, "optimizer_slots": 1},
    "one, in backward": {"on_device": True, "in_backward": True, "optimizer_slots": 1},
    "in backward": {"on_device": True, "in_backward": True},
    "kept": {"resident": 2},
    "kept, in backward": {"on_device": True, "in_backward": True, "resident": 2},
    "inputs on the host": {"inputs_on_host": True},
    "all in backward": {"on_device": True, "in_backward": True, "inputs_on_host": True},
    "graph": {"mode": "graph"},
    "graph, device": {"mode": "graph", "on_device": True, "max_active_layers": 3},
    "graph, kept": {"mode": "graph", "resident": 2},
    "all kept": {"resident": 5, "on_device": True},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_losses_and_weights_are_the_resident_ones(way: str, kind: Any) -> None:
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    losses, weights, _ = trained(None, kind, **options)
    found, streamed, _ = trained(StreamingSettings(poison=True, **WAYS[way]), kind, **options)
    assert losses == found
    assert [] == [name for name in weights if not torch.equal(weights[name], streamed[name])]


@pytest.mark.parametrize("way", [way for way in WAYS if "backward" not in way])
def test_gradients_of_several_backwards_add_up_to_the_bit(way: str) -> None:
    losses, weights, _ = trained(None, passes=3)
    found, streamed, _ = trained(StreamingSettings(poison=True, **WAYS[way]), passes=3)
    assert losses == found
    assert [] == [name for name in weights if not torch.equal(weights[name], streamed[name])]


def test_nothing_is_left_in_use() -> None:
    _, _, streaming = trained(StreamingSettings())
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


@pytest.mark.parametrize("way", PLUGIN)
def test_the_plugin_trains_predicts_and_evaluates_as_without_it(way: str) -> None:
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
        trainer, batches = tiny_trainer(config)
        with trainer:
            losses = [trainer.step(batch).loss for batch in batches[:30]]
            losses.append(trainer.evaluate(batches[30:]))
            jumps = trainer.state.jumps
        weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        results.append((losses, jumps, weights))
    (plain, made, weights), (streamed, there, others) = results
    assert plain == streamed
    assert made == there
    assert [] == [name for name in weights if not torch.equal(weights[name], others[name])]
