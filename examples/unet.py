"""The UNet of Stable Diffusion XL, with random weights, and a loss that predicts the noise.

A configuration names a function of this module, such as `examples.unet:sdxl`, if the command runs
in the folder that has `examples/`. It needs diffusers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor, nn

    LossFn = Callable[[nn.Module, Mapping[str, Tensor]], Tensor]

SDXL: dict[str, Any] = {
    "sample_size": 128,
    "block_out_channels": (320, 640, 1280),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2, 10),
    "attention_head_dim": (5, 10, 20),
    "cross_attention_dim": 2048,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
"""The configuration of stable-diffusion-xl-base-1.0's UNet, with 2.57 billion parameters."""


def sdxl(
    dtype: Literal["float32", "bfloat16"] = "float32", **smaller: Any
) -> tuple[nn.Module, LossFn]:
    """Return the UNet and its loss; `smaller` replaces values of the configuration."""
    from diffusers import UNet2DConditionModel  # noqa: PLC0415 - optional

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        return UNet2DConditionModel(**{**SDXL, **smaller}), noise_loss()
    finally:
        torch.set_default_dtype(before)


def noise_loss() -> LossFn:
    """Return the loss: the mean squared error of the predicted noise, at random times."""
    from diffusers import DDPMScheduler  # noqa: PLC0415 - optional

    scheduler = DDPMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", num_train_timesteps=1000
    )

    def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        clean = batch["latents"]
        noise = torch.randn_like(clean)
        times = torch.randint(1000, (len(clean),), device=clean.device)
        noisy = scheduler.add_noise(clean, noise, times)
        added = {"text_embeds": batch["pooled"], "time_ids": batch["sizes"]}
        found = model(noisy, times, batch["text"], added_cond_kwargs=added).sample
        return functional.mse_loss(found.float(), noise.float())

    return loss


class Latents:
    """Random latents and embeddings of prompts. Put those of your own pictures in their place."""

    def __init__(self, batch_size: int, seed: int, side: int, dtype: torch.dtype) -> None:
        self.batch_size, self.seed, self.side, self.dtype = batch_size, seed, side, dtype

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Yield batches without end, the same each time."""
        drawn = torch.Generator().manual_seed(self.seed)
        shapes = {
            "latents": (4, self.side, self.side),
            "text": (77, 2048),
            "pooled": (1280,),
            "sizes": (6,),
        }
        while True:
            yield {
                name: torch.randn(self.batch_size, *shape, generator=drawn).to(self.dtype)
                for name, shape in shapes.items()
            }


def latents(
    batch_size: int, seed: int, side: int = 128, dtype: Literal["float32", "bfloat16"] = "float32"
) -> Latents:
    """Return batches of latents with `side` rows, an eighth of the pictures'."""
    return Latents(batch_size, seed, side, getattr(torch, dtype))
