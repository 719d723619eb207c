"""A formula for the bytes that a float32 decoder of any size needs with AdamW.

The formula computes the figures of the memory ledger, which is Neaptide's estimate for one model.
The formula and the ledger leave out activations, small buffers of each parameter tensor, and the
temporary memory of updates.
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
"""Plugins that the formula covers. Plugins that affect only activations add no term."""
SLOTS = 2
"""Default number of layer-streaming's device buffers (slots) for weights. On a GPU there are as
many buffers for gradients in transfer; a CPU adds gradients where they are."""


@attrs.frozen(kw_only=True)
class Decoder:
    """Parameter counts of a decoder: 12 width² in each block, and `rest` outside the blocks."""

    layers: int
    width: int
    rest: int
    """Number of parameters of embeddings, head and norms."""

    @property
    def block(self) -> int:
        """Number of parameters of one block."""
        return 12 * self.width**2

    @property
    def parameters(self) -> int:
        """Number of all parameters."""
        return self.layers * self.block + self.rest


def gpt(layers: int, width: int, *, vocabulary: int = 50_257, context: int = 1024) -> Decoder:
    """Return a decoder with position embeddings. Its head is tied to the token embedding."""
    return Decoder(layers=layers, width=width, rest=(vocabulary + context) * width)


LARGE = {
    "124M": gpt(12, 768),
    "1B": gpt(24, 1792),
    "7B": gpt(32, 4096, vocabulary=32_000, context=4096),
    "50B": gpt(64, 8064, vocabulary=32_000, context=4096),
}


def computed(
    model: Decoder, plugins: Collection[str], *, on_gpu: bool
) -> dict[str, tuple[int, int]]:
    """Return the peak bytes (device, host) in ordinary training and in the phase Predict.

    The bytes include the optimizer state. Weights that `layer-streaming` streams are updated on the
    host.
    """
    blocks = model.layers * model.block
    streamed = blocks if "layer-streaming" in plugins else 0
    resident = model.parameters - streamed
    slots = SLOTS * (2 if on_gpu else 1) * 4 * model.block if streamed else 0
    weights, state = 4 * resident, 8 * resident
    # Streamed: weights, gradients and both moments on the host; a block's gradients on the device.
    below = 16 * streamed
    train = weights + 4 * resident + state + slots + (4 * model.block if streamed else 0)
    train_host, device, host = below, weights + state + slots, below + 4 * model.parameters
    if "optimizer-offload" in plugins:
        device -= state
        host += state
        # The host copy exists until the state is copied back in parallel with the first forward.
        train_host += state
    if "int8" in plugins:
        codes = blocks + 4 * 9 * model.width * model.layers  # plus one scale per channel
        if streamed:
            host += codes
        else:
            device += codes - 4 * blocks
            host += 4 * blocks
    return {"train": (train, train_host), "predict": (device, host)}
