"""Decoders in plain PyTorch, in the shapes of GPT-2 and Llama, with random weights.

A configuration names a function of this module, such as `examples.decoders:llama`, if the command
runs in the folder that has `examples/`. Tokens are bytes: put your own tokens in their place.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    LossFn = Callable[[nn.Module, Mapping[str, Tensor]], Tensor]

Dtype = Literal["float32", "bfloat16"]

TOKENS_AT_ONCE = 1024
"""Tokens whose logits exist at the same time."""
ROTARY_BASE = 10_000.0


class CausalAttention(nn.Module):
    """Self-attention in which a position sees itself and what is before it."""

    def __init__(self, width: int, heads: int, *, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.mixed = nn.Linear(width, 3 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor, turn: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Keep `[B, T, width]`; `turn` changes queries and keys, `[B, heads, T, size]`."""
        parts = self.mixed(x).chunk(3, dim=-1)
        query, key, value = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in parts)
        if turn is not None:
            query, key = turn(query), turn(key)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return result


class LlamaBlock(nn.Module):
    """Attention with rotary positions, then SwiGLU, each after an RMS norm."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.attention = CausalAttention(width, heads, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Keep the shape `[B, T, width]`; `cosine` and `sine` are `[T, width / heads / 2]`."""
        x = x + self.attention(self.attention_norm(x), partial(turned, cosine, sine))
        inner = self.mlp_norm(x)
        result: Tensor = x + self.down(functional.silu(self.gate(inner)) * self.up(inner))
        return result


class AttentionHalf(nn.Module):
    """The first half of a `LlamaBlock`, as a block of its own."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, 1e-5)
        self.attention = CausalAttention(width, heads, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Keep the shape `[B, T, width]`; `cosine` and `sine` are `[T, width / heads / 2]`."""
        result: Tensor = x + self.attention(self.norm(x), partial(turned, cosine, sine))
        return result


class MlpHalf(nn.Module):
    """The second half of a `LlamaBlock`, as a block of its own."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, 1e-5)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, *_: Tensor) -> Tensor:
        """Keep the shape `[B, T, width]`."""
        inner = self.norm(x)
        result: Tensor = x + self.down(functional.silu(self.gate(inner)) * self.up(inner))
        return result


class LlamaDecoder(nn.Module):
    """Maps tokens, int64 `[B, T]`, to what the head reads, `[B, T, width]`."""

    def __init__(
        self, layers: int, width: int, heads: int, hidden: int, vocabulary: int, *, halves: bool
    ) -> None:
        super().__init__()
        self.size = width // heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            if halves:
                self.blocks.extend((AttentionHalf(width, heads), MlpHalf(width, hidden)))
            else:
                self.blocks.append(LlamaBlock(width, heads, hidden))
        self.norm = nn.RMSNorm(width, 1e-5)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the last hidden state; `loss` computes the logits in pieces."""
        x = self.embedding(tokens)
        cosine, sine = angles(tokens.shape[1], self.size, x)
        for block in self.blocks:
            x = block(x, cosine, sine)
        result: Tensor = self.norm(x)
        return result


class Gpt2Block(nn.Module):
    """Attention, then an MLP of four times the width, each after a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads, bias=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape `[B, T, width]`."""
        x = x + self.attention(self.attention_norm(x))
        inner = functional.gelu(self.up(self.mlp_norm(x)), approximate="tanh")
        result: Tensor = x + self.down(inner)
        return result


class Gpt2Decoder(nn.Module):
    """Maps tokens, int64 `[B, T]`, to what the head reads. The head has the embedding's weights."""

    def __init__(self, layers: int, width: int, heads: int, context: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Gpt2Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the last hidden state, `[B, T, width]`."""
        x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.norm(x)
        return result


Decoder = TypeVar("Decoder", LlamaDecoder, Gpt2Decoder)


def llama(
    layers: int = 32,
    width: int = 4096,
    heads: int = 32,
    hidden: int = 11008,
    vocabulary: int = 32_000,
    dtype: Dtype = "float32",
    trained_blocks: int | None = None,
    halves: bool = False,  # noqa: FBT001, FBT002 - a configuration names it
) -> tuple[nn.Module, LossFn]:
    """Return a decoder of Llama's kind, by default with 6.7 billion parameters, and its loss.

    `trained_blocks` is the number of blocks at the end that are trained, with the last norm; all
    other weights are frozen. None trains everything. With `halves`, attention and MLP are blocks of
    their own: two of them on the device take less than two whole blocks.
    """
    model = built(
        dtype, lambda: LlamaDecoder(layers, width, heads, hidden, vocabulary, halves=halves)
    )
    if trained_blocks is not None:
        model.requires_grad_(requires_grad=False)
        first = (layers - trained_blocks) * len(model.blocks) // layers
        for part in (*model.blocks[first:], model.norm):
            part.requires_grad_()
    return model, loss


def gpt2(
    layers: int = 48,
    width: int = 1600,
    heads: int = 25,
    context: int = 1024,
    vocabulary: int = 50_257,
    dtype: Dtype = "float32",
) -> tuple[nn.Module, LossFn]:
    """Return a decoder of GPT-2's kind, by default GPT-2 XL with 1.6 billion parameters."""
    return built(dtype, lambda: Gpt2Decoder(layers, width, heads, context, vocabulary)), loss


def built(dtype: Dtype, build: Callable[[], Decoder]) -> Decoder:
    """Return a model whose weights have a dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        model = build()
    finally:
        torch.set_default_dtype(before)
    nn.init.normal_(model.embedding.weight, std=0.02)
    return model


def angles(length: int, size: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of rotary positions, each `[length, size / 2]`, as `like` is."""
    pairs = torch.arange(0, size, 2, device=like.device, dtype=torch.float32)
    places = torch.arange(length, device=like.device, dtype=torch.float32)
    angle = torch.outer(places, ROTARY_BASE ** (-pairs / size))
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


def turned(cosine: Tensor, sine: Tensor, one: Tensor) -> Tensor:
    """Return queries or keys, `[B, heads, T, size]`, turned by their positions."""
    left, right = one.chunk(2, dim=-1)
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the mean cross-entropy of the next tokens in nats.

    `batch["tokens"]` is int64 `[B, T + 1]`. The logits of a piece are computed again in the
    backward, because all logits together may take more memory than the blocks.
    """
    tokens = batch["tokens"]
    outputs: Tensor = model(tokens[:, :-1])
    hidden = torch.split(outputs.flatten(0, 1), TOKENS_AT_ONCE)
    wanted = torch.split(tokens[:, 1:].flatten(), TOKENS_AT_ONCE)
    total = hidden[0].new_zeros((), dtype=torch.float32)
    for piece, labels in zip(hidden, wanted, strict=True):
        total = total + checkpoint(summed, model.head, piece, labels, use_reentrant=False)
    return total / tokens[:, 1:].numel()


def summed(head: nn.Module, hidden: Tensor, labels: Tensor) -> Tensor:
    """Return the summed cross-entropy of a piece, computed in float32."""
    return functional.cross_entropy(head(hidden).float(), labels, reduction="sum")
