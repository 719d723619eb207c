"""Tiny transformers models from their configs, streamed by the plugin: to the bit as without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from architectures import CASES, causal, tokens_of
from streamed import different
from support import DEVICE
from torch import nn

from neaptide import HybridTrainer


def trained(
    make: Any, batch: Any, settings: dict[str, Any] | None
) -> tuple[list[float], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = make().to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    plugins = {} if settings is None else {"layer-streaming": settings}
    with HybridTrainer(model, optimizer, config={"plugins": plugins}) as trainer:
        losses = [trainer.step(batch(step)).loss for step in range(3)]
    return losses, {key: value.cpu().clone() for key, value in model.state_dict().items()}


GRAPH = {"mode": "graph"}
WAYS: list[dict[str, Any]] = [{}, {"update": "in_backward", "max_active_layers": 3}]


@pytest.mark.parametrize("name", CASES)
def test_losses_and_weights_are_those_without_streaming(name: str) -> None:
    losses, weights = trained(*CASES[name], None)
    for settings in (GRAPH, *WAYS):
        found, others = trained(*CASES[name], settings)
        assert losses == found, settings
        assert [] == different(weights, others), settings


def test_what_experts_hand_out_by_hooks_needs_the_graph() -> None:
    def make() -> nn.Module:
        return causal("Mixtral", num_local_experts=4, output_router_logits=True)

    with pytest.raises(RuntimeError, match=r"layers\.2' is used outside .* set mode = 'graph'"):
        trained(make, tokens_of, {})
    losses, weights = trained(make, tokens_of, None)
    found, others = trained(make, tokens_of, GRAPH)
    assert losses == found
    assert [] == different(weights, others)
