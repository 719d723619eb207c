"""A GPT over bytes: pre-norm blocks, learned positions, an untied head, no biases in linears."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .losses import summed_cross_entropy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .config import ByteGptOptions

VOCABULARY = 256
EMBEDDING_STD = 0.3


class Attention(nn.Module):
    """Causal multi-head self-attention (Vaswani et al. 2017). Keeps the shape `[B, T, width]`."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return, for each position, a mixture of this position and the earlier positions."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        projected: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return projected


class TransformerBlock(nn.Module):
    """A pre-norm transformer block (Radford et al. 2019). Keeps the shape `[B, T, width]`."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Add the output of the attention branch to `x`, then the output of the MLP branch."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        mixed: Tensor = self.dropout(self.down(nn.functional.gelu(self.up(self.mlp_norm(x)))))
        return x + mixed


class ByteGpt(nn.Module):
    """A GPT that maps bytes, int64 `[B, T]`, to logits of the next bytes, `[B, T, 256]`."""

    def __init__(self, options: ByteGptOptions) -> None:
        super().__init__()
        self.context = options.context
        self.embedding = nn.Embedding(VOCABULARY, options.width)
        self.positions = nn.Embedding(options.context, options.width)
        self.dropout = nn.Dropout(options.dropout)
        self.blocks = nn.ModuleList(
            TransformerBlock(options.width, options.heads, options.dropout)
            for _ in range(options.layers)
        )
        self.norm = nn.LayerNorm(options.width)
        self.head = nn.Linear(options.width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits; ValueError unless `tokens` is `[B, T]` with `1 <= T <= context`."""
        row = tokens.shape[1:]
        if len(row) != 1 or not 1 <= row[0] <= self.context:
            msg = (
                f"byte-gpt takes tokens of shape [batch, 1 to {self.context}], got "
                f"{list(tokens.shape)}: give shorter windows or raise the model's 'context'"
            )
            raise ValueError(msg)
        places = torch.arange(row[0], device=tokens.device)
        x = self.dropout(self.embedding(tokens) + self.positions(places))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def build(options: ByteGptOptions) -> ByteGpt:
    """Return a new model; its weights are drawn from torch's global generator.

    The standard deviation of the weights is 1/sqrt(fan_in) in linear layers. In the two projections
    into the residual stream this deviation is also divided by sqrt(2 * layers), so that the
    stream's variance does not grow with depth (Radford et al. 2019, section 2.3). In embeddings the
    standard deviation is 0.3. With the usual 0.02 the outputs of the first branches would be far
    larger than the embeddings. `init_scale` multiplies all of these deviations.
    """
    model = ByteGpt(options)
    into_residual = {
        projection
        for block in model.modules()
        if isinstance(block, TransformerBlock)
        for projection in (block.attention.out, block.down)
    }
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=EMBEDDING_STD * options.init_scale)
        elif isinstance(module, nn.Linear):
            std = 1 / math.sqrt(module.in_features)
            if module in into_residual:
                std /= math.sqrt(2 * options.layers)
            nn.init.normal_(module.weight, std=std * options.init_scale)
    return model


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, int]:
    """Return the summed next-byte cross-entropy in nats and the number of predicted bytes.

    `batch["tokens"]` is int64 `[B, T + 1]` with `1 <= T <= context`: bytes 0 to T-1 predict bytes
    1 to T. ValueError for any other shape.
    """
    tokens = batch["tokens"]
    logits: Tensor = model(tokens[:, :-1])
    return summed_cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
