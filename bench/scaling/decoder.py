"""A decoder in plain torch.

It has RMSNorm, rotary positions, SwiGLU and causal attention. The loss is computed in chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

TOKENS_AT_ONCE = 2048
"""Number of tokens whose logits exist at the same time."""
SPREAD = 0.02
ROTARY_BASE = 10_000.0


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder."""

    blocks: int
    width: int
    heads: int
    hidden: int
    """Width of the SwiGLU's inner layer."""
    vocabulary: int
    tied: bool = False
    """True if the head uses the embedding's weights."""

    @property
    def block_parameters(self) -> int:
        """Return the number of parameters of one block."""
        return 4 * self.width**2 + 3 * self.width * self.hidden + 2 * self.width

    @property
    def outside_parameters(self) -> int:
        """Return the number of parameters of the embedding, the last norm and the head."""
        return self.vocabulary * self.width * (1 if self.tied else 2) + self.width

    @property
    def parameters(self) -> int:
        """Return the number of all parameters."""
        return self.blocks * self.block_parameters + self.outside_parameters

    def operations(self, tokens: int, sequence: int) -> float:
        """Return the floating-point operations of a training step with full recomputation.

        A multiply-add counts as two operations. Each multiply-add of the forward is done four
        times: in the forward, in the recomputation, for the gradients of inputs, and for the
        gradients of weights. Only the causal half of attention is counted.
        """
        matrices = 4 * self.width**2 + 3 * self.width * self.hidden
        attention = self.width * sequence  # scores and weighted values: 2 * 2 * s / 2 * h / 2
        head = self.width * self.vocabulary
        return 8.0 * tokens * (self.blocks * (matrices + attention) + head)


class Attention(nn.Module):
    """Causal attention after a norm, with a residual connection."""

    def __init__(self, shape: Shape, **options: Any) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm = nn.RMSNorm(shape.width, eps=1e-5, **options)
        self.mixed = nn.Linear(shape.width, 3 * shape.width, bias=False, **options)
        self.out = nn.Linear(shape.width, shape.width, bias=False, **options)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Map `x`, `(batch, sequence, width)`, to a tensor of the same shape."""
        batch, sequence, width = x.shape
        mixed = self.mixed(self.norm(x)).view(batch, sequence, 3, self.heads, -1)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            rotated(query, cosine, sine), rotated(key, cosine, sine), value, is_causal=True
        )
        return x + self.out(attended.transpose(1, 2).reshape(batch, sequence, width))


class Mlp(nn.Module):
    """SwiGLU after a norm, with a residual connection."""

    def __init__(self, shape: Shape, **options: Any) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(shape.width, eps=1e-5, **options)
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False, **options)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False, **options)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False, **options)

    def forward(self, x: Tensor) -> Tensor:
        """Map `x`, `(batch, sequence, width)`, to a tensor of the same shape."""
        inner = self.norm(x)
        return x + self.down(functional.silu(self.gate(inner)) * self.up(inner))


class Block(nn.Module):
    """Attention, then SwiGLU. Each of these two modules can be streamed as a separate block."""

    def __init__(self, shape: Shape, **options: Any) -> None:
        super().__init__()
        self.attention = Attention(shape, **options)
        self.mlp = Mlp(shape, **options)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Map `x`, `(batch, sequence, width)`, to a tensor of the same shape."""
        found: Tensor = self.mlp(self.attention(x, cosine, sine))
        return found


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Return `(batch, heads, sequence, size)` rotated by each position's angles."""
    one, other = x.chunk(2, dim=-1)
    return torch.cat((one * cosine - other * sine, other * cosine + one * sine), dim=-1)


class Decoder(nn.Module):
    """Predicts the next token.

    Args:
        shape: the decoder's sizes.
        dtype: dtype of all parameters.
        device: device of the parameters. The parameters are created block by block.
        source: device that draws the random numbers; a GPU draws many times faster than a CPU.
    """

    def __init__(
        self,
        shape: Shape,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        source: str | torch.device = "cpu",
    ) -> None:
        super().__init__()
        self.shape = shape
        options: dict[str, Any] = {"dtype": dtype, "device": "meta"}
        embedding = nn.Embedding(shape.vocabulary, shape.width, **options)
        self.embedding = filled(embedding, device, source)
        self.blocks = nn.ModuleList(
            filled(Block(shape, **options), device, source) for _ in range(shape.blocks)
        )
        self.norm = filled(nn.RMSNorm(shape.width, eps=1e-5, **options), device, source)
        head = nn.Linear(shape.width, shape.vocabulary, bias=False, **options)
        if shape.tied:
            head.weight = self.embedding.weight
            self.head = head
        else:
            self.head = filled(head, device, source)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats.

        Tokens and labels are int64 tensors `(batch, sequence)`.
        """
        x = self.embedding(tokens)
        cosine, sine = angles(tokens.shape[1], self.shape.width // self.shape.heads, x)
        for block in self.blocks:
            x = block(x, cosine, sine)
        hidden = self.norm(x).flatten(0, 1).split(TOKENS_AT_ONCE)
        total = x.new_zeros((), dtype=torch.float32)
        for piece, wanted in zip(hidden, labels.flatten().split(TOKENS_AT_ONCE), strict=True):
            total = total + checkpoint(self._loss, piece, wanted, use_reentrant=False)
        return total / labels.numel()

    def _loss(self, hidden: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(hidden).float(), labels, reduction="sum")


def angles(sequence: int, size: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines in the dtype and on the device of `like`.

    Each has the shape `(sequence, size // 2)`.
    """
    pairs = torch.arange(0, size, 2, device=like.device, dtype=torch.float32)
    positions = torch.arange(sequence, device=like.device, dtype=torch.float32)
    turned = torch.outer(positions, ROTARY_BASE ** (-pairs / size))
    return turned.cos().to(like.dtype), turned.sin().to(like.dtype)


def filled(module: nn.Module, device: str | torch.device, source: str | torch.device) -> nn.Module:
    """Return the module on `device`.

    Norms are set to one, all other parameters to random numbers.
    """
    module.to_empty(device=device)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                parameter.copy_(torch.empty_like(parameter, device=source).normal_(0.0, SPREAD))
    return module


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the loss that the model itself computes."""
    return model(*batch)


def batch_of(
    shape: Shape, samples: int, sequence: int, device: str | torch.device, seed: int
) -> tuple[Tensor, Tensor]:
    """Return random tokens and labels, each `(samples, sequence)`."""
    random = torch.Generator().manual_seed(seed)
    drawn = torch.randint(shape.vocabulary, (2, samples, sequence), generator=random).to(device)
    return drawn[0], drawn[1]
