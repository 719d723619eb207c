"""A net with everything that streaming finds hard, and its training resident and streamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from neaptide_plugins.layer_streaming.streaming import Streaming
from neaptide_toolkit.recompute import find_blocks

if TYPE_CHECKING:
    from neaptide_plugins.layer_streaming.settings import StreamingSettings


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


def trained_net(
    settings: StreamingSettings | None,
    kind: Any = torch.optim.AdamW,
    passes: int = 1,
    *,
    device: str = "cpu",
    set_to_none: bool = True,
    **options: Any,
) -> tuple[list[float], dict[str, torch.Tensor], Streaming | None]:
    """Train six steps; return losses and weights."""
    torch.manual_seed(0)
    model = Net()
    if settings is None:
        model.to(device)
    optimizer = kind([p for p in model.parameters() if p.requires_grad], lr=1e-2, **options)
    streaming = None
    if settings is not None:
        streaming = Streaming(model, find_blocks(model), optimizer, torch.device(device), settings)
    losses = []
    for skip in (None, None, 2, None, 0, None):
        for _ in range(passes):
            tokens = torch.randint(0, 11, (4, 6)).to(device)
            loss = functional.cross_entropy(model(tokens, skip).flatten(0, 1), tokens.flatten())
            loss.backward()
            losses.append(loss.item())
            if streaming is not None:
                streaming.gradients.flush()
        if streaming is None:
            optimizer.step()
        else:
            streaming.step()
            if set_to_none:
                streaming.gradients.drop()
        optimizer.zero_grad(set_to_none=set_to_none)
    if streaming is not None:
        streaming.close()
    weights = {name: value.detach().cpu().clone() for name, value in model.named_parameters()}
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
