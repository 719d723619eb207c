"""Compare training with streamed blocks to training with resident blocks, bit for bit."""

from __future__ import annotations

import math
import random
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from probes.streamer import Streamer, update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from probes.checks import Check, Finding

VOCABULARY = 256
STEPS = 3


@dataclass(frozen=True)
class Size:
    """The sizes of the network and of its batches."""

    width: int
    heads: int
    blocks: int
    length: int
    rows: int


@dataclass(frozen=True)
class Precision:
    """The precision and the attention kernel of both compared trainings."""

    bf16: bool
    attention: SDPBackend | None = None


PRECISIONS = {
    "fp32": Precision(bf16=False),
    "fp32, math attention": Precision(bf16=False, attention=SDPBackend.MATH),
    "bf16 autocast": Precision(bf16=True),
    "bf16 autocast, math attention": Precision(bf16=True, attention=SDPBackend.MATH),
}


class Block(nn.Module):
    """A pre-norm transformer block with dropout in three places and one frozen parameter."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.5), requires_grad=False)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Map `[B, T, width]` to `[B, T, width]`."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(
            query, key, value, dropout_p=0.1, is_causal=True
        )
        x = x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        hidden = nn.functional.gelu(self.up(self.norms[1](x)))
        changed: Tensor = x + self.scale * self.dropout(self.down(hidden))
        return changed


class Network(nn.Module):
    """A network whose embedding and head are resident. The caller runs the blocks."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.blocks))
        self.head = nn.Linear(size.width, VOCABULARY)

    def forward(self, tokens: Tensor, run_block: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Return logits `[B, T, 256]` for int64 tokens `[B, T]`."""
        x = self.embedding(tokens)
        for index in range(len(self.blocks)):
            x = run_block(index, x)
        logits: Tensor = self.head(x)
        return logits

    def run_resident(self, index: int, x: Tensor) -> Tensor:
        """Run block `index` on the device where the block is."""
        y: Tensor = self.blocks[index](x)
        return y


@dataclass(frozen=True)
class Trained:
    """The result of a few steps: the final weights, and the loss and gradients of each step."""

    losses: list[float]
    grads: list[dict[str, Tensor]]
    weights: dict[str, Tensor]


def train(
    size: Size, precision: Precision, device: torch.device, *, slots: int = 0, **streaming: Any
) -> Trained:
    """Train a network. Every call has the same initial weights and batches.

    The blocks are streamed if `slots` is not 0; otherwise they are resident.
    """
    torch.manual_seed(0)
    network = Network(size)
    batches = torch.randint(0, VOCABULARY, (STEPS, size.rows, size.length + 1)).to(device)
    if slots:
        streamer = Streamer(list(network.blocks), device, slots=slots, **streaming)
        network.embedding.to(device)
        network.head.to(device)
        run_block: Callable[[int, Tensor], Tensor] = streamer.run
    else:
        network.to(device)
        run_block = network.run_resident
    losses, grads = [], []
    for tokens in batches:
        loss = loss_of(network, tokens, precision, run_block)
        update(network)
        if slots:
            streamer.show_grads()
        losses.append(loss)
        grads.append(
            {
                name: parameter.grad.cpu().clone()
                for name, parameter in network.named_parameters()
                if parameter.grad is not None
            }
        )
        network.zero_grad()
    weights = {name: tensor.detach().cpu() for name, tensor in network.named_parameters()}
    return Trained(losses, grads, weights)


def loss_of(
    network: Network,
    tokens: Tensor,
    precision: Precision,
    run_block: Callable[[int, Tensor], Tensor],
) -> float:
    """Run forward and backward over one batch. Return the batch's loss."""
    attention = sdpa_kernel(precision.attention) if precision.attention else nullcontext()
    with attention:
        with torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=precision.bf16):
            logits = network(tokens[:, :-1], run_block)
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
    return loss.item()


def compare(reference: Callable[[], Trained], other: Callable[[], Trained]) -> Finding:
    """Return the difference between the results of two trainings."""
    one, two = reference(), other()
    pairs = [
        (expected[name], actual[name])
        for expected, actual in zip(one.grads, two.grads, strict=True)
        for name in expected.keys() | actual.keys()
    ]
    # torch's maximum propagates NaN. Python's maximum does not.
    largest = torch.stack([(a - b).abs().max() for a, b in pairs]).max().item()
    scale = max(expected.abs().max().item() for expected, _ in pairs)
    losses = one.losses == two.losses
    weights = all(torch.equal(one.weights[name], two.weights[name]) for name in one.weights)
    return {
        "summary": (
            f"losses {'bitwise equal' if losses else f'differ: {one.losses} and {two.losses}'}; "
            f"largest gradient difference {largest:.2g} (of gradients up to {scale:.2g}); "
            f"weights {'bitwise equal' if weights else 'differ'}"
        ),
        "losses_equal": losses,
        "weights_equal": weights,
        "largest_gradient_difference": largest if math.isfinite(largest) else None,
        "largest_gradient": scale,
    }


def checks(device: torch.device, *, size: str) -> Iterator[Check]:
    """Yield comparisons of resident training with itself and with forms of streaming."""
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    shape = Size(width=1024, heads=16, blocks=6, length=256, rows=4)
    if size != "full" or device.type == "cpu":
        shape = Size(width=64, heads=4, blocks=4, length=32, rows=4)
    for label, precision in PRECISIONS.items():
        again = partial(train, shape, precision, device)
        against = partial(compare, cache(again))
        streamed = partial(again, slots=2)
        yield f"{label}: resident, trained again (control)", partial(against, again)
        yield f"{label}: streamed, 2 slots", partial(against, streamed)
        yield f"{label}: streamed, 3 slots", partial(against, partial(again, slots=3))
        # A simulated device cannot delay a stream.
        if device.type == "cuda" and hasattr(torch._C, "_cuda_sleep"):  # noqa: SLF001
            delayed = partial(streamed, delays=random.Random(0))  # noqa: S311 - a delay, no secret
            yield f"{label}: streamed, random delays in the copies", partial(against, delayed)
        forgetful = partial(streamed, restore_rng=False)
        yield f"{label}: RNG not restored (control, must differ)", partial(against, forgetful)
