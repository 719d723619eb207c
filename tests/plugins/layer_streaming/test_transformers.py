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

SUMMED = {"t5", "bart", "whisper"}
"""Several blocks use the encoder's output: each one's gradient is summed before they are."""


def trained(
    make: Any,
    batch: Any,
    settings: dict[str, Any] | None,
    kind: type[torch.optim.Optimizer] = torch.optim.AdamW,
) -> tuple[list[float], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = make().to(DEVICE).train()
    optimizer = kind(model.parameters(), lr=1e-3)
    plugins = {} if settings is None else {"layer-streaming": settings}
    with HybridTrainer(model, optimizer, config={"plugins": plugins}) as trainer:
        losses = [trainer.step(batch(step)).loss for step in range(3)]
    return losses, {key: value.cpu().clone() for key, value in model.state_dict().items()}


GRAPH = {"mode": "graph"}
WAYS: list[dict[str, Any]] = [{}, {"update": "in_backward", "max_active_layers": 3}]


@pytest.mark.parametrize("name", CASES)
def test_losses_and_weights_are_those_without_streaming(name: str) -> None:
    losses, weights = trained(*CASES[name], None)
    for settings in (GRAPH, *([] if name in SUMMED else WAYS)):
        found, others = trained(*CASES[name], settings)
        assert losses == found, settings
        assert [] == different(weights, others), settings


@pytest.mark.parametrize("name", sorted(SUMMED))
def test_gradients_of_what_blocks_share_are_summed_block_by_block(name: str) -> None:
    make, batch = CASES[name]

    def wide(step: int) -> dict[str, torch.Tensor]:
        given = batch(step).items()
        return {key: v.double() if v.is_floating_point() else v for key, v in given}

    losses, weights = trained(lambda: make().double(), wide, None, torch.optim.SGD)
    for settings in WAYS:
        found, others = trained(lambda: make().double(), wide, settings, torch.optim.SGD)
        assert losses == pytest.approx(found, rel=1e-13)
        torch.testing.assert_close(weights, others, rtol=1e-12, atol=1e-14)


def test_what_experts_hand_out_by_hooks_needs_the_graph() -> None:
    def make() -> nn.Module:
        return causal("Mixtral", num_local_experts=4, output_router_logits=True)

    with pytest.raises(RuntimeError, match=r"layers\.2' is used outside .* set mode = 'graph'"):
        trained(make, tokens_of, {})
    losses, weights = trained(make, tokens_of, None)
    found, others = trained(make, tokens_of, GRAPH)
    assert losses == found
    assert [] == different(weights, others)
