"""A UNet and a DiT of diffusers, streamed: to the bit as resident ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from diffusers import UNet2DConditionModel
from diffusion import PARTS, batch_of, dit, loss_of, unet
from streamed import different, optimizer_of
from support import DEVICE

from neaptide import HybridTrainer, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import nn

FIRST = {"exclude": ["transformer_blocks.0"]}
AT_ONCE = {"update": "in_backward", "inputs": "host"}
CASES = [(unet, {}), (unet, {"blocks": PARTS}), (unet, {"blocks": PARTS, **AT_ONCE})]
CASES += [(dit, FIRST), (dit, {**FIRST, **AT_ONCE}), (dit, {**FIRST, "mode": "graph"})]


def trained(
    make: Callable[[], nn.Module], plugins: dict[str, Any], dtype: torch.dtype
) -> tuple[list[float], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = make().train()
    if not any(one.is_meta for one in model.parameters()):
        model = model.to(DEVICE, dtype)
    with HybridTrainer(
        model, optimizer_of(model), loss_fn=loss_of, config={"plugins": plugins}
    ) as trainer:
        losses = [trainer.step(batch_of(step, dtype)).loss for step in range(2)]
        losses.append(trainer.evaluate([batch_of(9, dtype)]))
    return losses, {key: value.cpu().clone() for key, value in model.state_dict().items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [unet, dit])
def test_losses_and_weights_are_those_of_a_resident_model(
    make: Callable[[], nn.Module], dtype: torch.dtype
) -> None:
    losses, weights = trained(make, {}, dtype)
    kept = {"interval": 1} | ({"blocks": PARTS} if make is unet else {})
    ways = [{"layer-streaming": way} for model, way in CASES if model is make]
    for plugins in ({"activation-checkpointing": kept}, *ways):
        found, others = trained(make, plugins, dtype)
        assert losses == found, plugins
        assert [] == different(weights, others), plugins


def test_a_unet_on_the_meta_device_is_filled_from_its_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    unet().save_pretrained(tmp_path)
    expected, weights = trained(unet, {}, torch.float32)

    def empty() -> nn.Module:
        config = UNet2DConditionModel.load_config(tmp_path)
        with torch.device("meta"):
            return UNet2DConditionModel.from_config(config)

    streamed = {"blocks": PARTS, "weights": str(tmp_path)}
    losses, others = trained(empty, {"layer-streaming": streamed}, torch.float32)
    assert expected == losses
    assert [] == different(weights, others)


def test_a_part_of_a_block_that_the_head_calls_names_the_way_out() -> None:
    with pytest.raises(
        ModelError, match=r"of block 'transformer_blocks\.0' is used outside .*exclu"
    ):
        trained(dit, {"layer-streaming": {}}, torch.float32)
