"""Tiny diffusion models of diffusers, from their configs, and the loss of the predicted noise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from diffusers import DDPMScheduler, DiTTransformer2DModel, UNet2DConditionModel
from support import DEVICE
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor, nn

PARTS = ["**.transformer_blocks.*", "**.resnets.*"]
"""What is repeated in the stages of a UNet."""
SMALLER: dict[str, Any] = {
    "sample_size": 8,
    "block_out_channels": (16, 16, 32),
    "norm_num_groups": 4,
    "attention_head_dim": (2, 2, 4),
    "transformer_layers_per_block": (1, 1, 2),
    "cross_attention_dim": 16,
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 64,
}
"""What makes the UNet of Stable Diffusion XL tiny."""
_SCHEDULER = DDPMScheduler()


def unet(**changes: Any) -> nn.Module:
    """Return a UNet with the stages, the skip connections and the conditions of that of SDXL."""
    return UNet2DConditionModel(
        **{**SMALLER, **changes},
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        use_linear_projection=True,
        addition_embed_type="text_time",
    )


def dit() -> nn.Module:
    """Return a DiT with dropout; its head calls a part of its first block."""
    return DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        num_layers=3,
        sample_size=8,
        num_embeds_ada_norm=10,
        norm_num_groups=4,
        dropout=0.1,
    )


def batch_of(step: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return latents, and everything on which the models are conditioned."""
    drawn = torch.Generator().manual_seed(step)
    sizes = {"clean": (4, 8, 8), "noise": (4, 8, 8), "text": (5, 16), "pooled": (16,), "ids": (6,)}
    batch = {name: torch.randn(2, *one, generator=drawn).to(dtype) for name, one in sizes.items()}
    batch["times"] = torch.randint(1000, (2,), generator=drawn)
    batch["labels"] = torch.randint(10, (2,), generator=drawn)
    return {name: one.to(DEVICE) for name, one in batch.items()}


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the mean squared error of the predicted noise."""
    noise, times = batch["noise"], batch["times"]
    noisy = _SCHEDULER.add_noise(batch["clean"], noise, times)
    if isinstance(model, DiTTransformer2DModel):
        found = model(noisy, timestep=times, class_labels=batch["labels"]).sample
    else:
        added = {"text_embeds": batch["pooled"], "time_ids": batch["ids"]}
        found = model(noisy, times, batch["text"], added_cond_kwargs=added).sample
    return functional.mse_loss(found[:, :4].float(), noise.float())
