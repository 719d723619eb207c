"""Bytes of a float32 decoder under AdamW by formula: what the ledger states, for any size.

Activations, buffers of a few bytes a parameter tensor and what an update takes meanwhile are left
out, as they are in the ledger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Collection

KNOWN = frozenset(
    {
        "activation-checkpointing",
        "activation-compression",
        "int8",
        "layer-streaming",
        "optimizer-offload",
    }
)
"""Plugins the formula has terms for; those of activations have none."""
SLOTS = 2
"""Of layer-streaming by default: for weights and for gradients on their way."""


@attrs.frozen(kw_only=True)
class Decoder:
    """Parameters of a decoder whose blocks have 12 width² weights, and the rest beside them."""

    layers: int
    width: int
    rest: int
    """Of embeddings, head and norms."""

    @property
    def block(self) -> int:
        """Parameters of one block."""
        return 12 * self.width**2

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.layers * self.block + self.rest


def gpt(layers: int, width: int, *, vocabulary: int = 50_257, context: int = 1024) -> Decoder:
    """Return a decoder with token and position embeddings, its head tied to the former."""
    return Decoder(layers=layers, width=width, rest=(vocabulary + context) * width)


LARGE = {
    "124M": gpt(12, 768),
    "1B": gpt(24, 1792),
    "7B": gpt(32, 4096, vocabulary=32_000, context=4096),
    "50B": gpt(64, 8064, vocabulary=32_000, context=4096),
}


def computed(model: Decoder, plugins: Collection[str]) -> dict[str, tuple[int, int]]:
    """Return the most bytes on (device, host) in training and in Predict, with state made.

    For layer-streaming with its optimizer where the weights are, on the host.
    """
    blocks = model.layers * model.block
    streamed = blocks if "layer-streaming" in plugins else 0
    resident = model.parameters - streamed
    slots = SLOTS * 2 * 4 * model.block if streamed else 0
    weights, state = 4 * resident, 8 * resident
    # Streamed: weights, gradients and both moments; the largest block's gradients on the device.
    below = 16 * streamed
    train = weights + 4 * resident + state + slots + (4 * model.block if streamed else 0)
    train_host, device, host = below, weights + state + slots, below + 4 * model.parameters
    if "optimizer-offload" in plugins:
        device -= state
        host += state
        # The copy is there until the state is back, which the first forward does not wait for.
        train_host += state
    if "int8" in plugins:
        codes = blocks + 4 * 9 * model.width * model.layers  # and a scale a channel
        if streamed:
            host += codes
        else:
            device += codes - 4 * blocks
            host += 4 * blocks
    return {"train": (train, train_host), "predict": (device, host)}
