"""The bytes that a configuration needs on the device and in RAM, computed from shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scaling.decoder import TOKENS_AT_ONCE

if TYPE_CHECKING:
    from scaling.configurations import Configuration

PROCESS = 4 * 2**30
"""RAM used by Python, torch and a CUDA context."""
STEPPED_AT_ONCE = 2**25
STATES = {"adamw": 2, "momentum": 1, "sgd": 0}
"""Number of values that each optimizer stores per parameter."""
BF16, FP32 = 2, 4


def state_bytes(configuration: Configuration) -> int:
    """Return the optimizer's bytes per bfloat16 weight.

    If the float32 master weight is split in two halves, the lower half is included. The upper half
    is the bfloat16 weight itself.
    """
    states = STATES[configuration.optimizer]
    return states * FP32 + BF16 if configuration.master == "split" else states * BF16


def streamed_unit(configuration: Configuration) -> int:
    """Return the number of parameters in the largest streamed block."""
    shape = configuration.shape
    mlp = 3 * shape.width * shape.hidden + shape.width
    return (
        max(mlp, shape.block_parameters - mlp) if configuration.halves else shape.block_parameters
    )


def units(configuration: Configuration) -> int:
    """Return the number of streamed blocks."""
    return configuration.shape.blocks * (2 if configuration.halves else 1)


def inputs(configuration: Configuration) -> int:
    """Return the bytes of the inputs of all recomputed blocks."""
    shape = configuration.shape
    return units(configuration) * configuration.tokens * shape.width * BF16


def host(configuration: Configuration) -> dict[str, int]:
    """Return the bytes of RAM by purpose."""
    shape, state = configuration.shape, state_bytes(configuration)
    blocks = shape.blocks * shape.block_parameters
    parts = {"process": PROCESS}
    if configuration.subject == "streamed":
        parts["weights"] = BF16 * blocks
        parts["optimizer state"] = state * blocks
        parts["one block on its way"] = BF16 * streamed_unit(configuration)
        parts["block inputs"] = inputs(configuration)
    elif configuration.subject == "fsdp2":
        parts["fp32 weights, gradients and state"] = 16 * shape.parameters
    elif configuration.subject == "torchao":
        parts["bf16 weights, gradients and state"] = (
            BF16 * 2 + BF16 * STATES[configuration.optimizer]
        ) * shape.parameters
    return {what: size for what, size in parts.items() if size}


def device(configuration: Configuration, pieces: int) -> dict[str, int]:
    """Return the bytes of device memory by purpose, if the batch has `pieces` micro-batches."""
    shape, state = configuration.shape, state_bytes(configuration)
    tokens = configuration.tokens // pieces
    unit, outside = streamed_unit(configuration), shape.outside_parameters
    parts = {
        "activations": tokens * (16 * shape.width + 6 * shape.hidden) * BF16,
        "logits": min(TOKENS_AT_ONCE, tokens) * shape.vocabulary * (BF16 + 3 * FP32),
        "stepping": 4 * FP32 * min(unit, STEPPED_AT_ONCE),
    }
    if configuration.subject == "streamed":
        states = STATES[configuration.optimizer]
        parts["embedding and head, trained"] = (2 + states) * BF16 * outside
        parts["slots"] = 2 * BF16 * unit
        parts["one block's gradients"] = (BF16 if pieces == 1 else BF16 + FP32) * unit
        parts["optimizer slots"] = 2 * state * unit
        return parts
    parts["block inputs"] = inputs(configuration) // pieces
    if configuration.subject == "fsdp2":
        parts["gathered"] = BF16 * (2 * unit + outside) + (BF16 + FP32) * (unit + outside)
    elif configuration.subject == "torchao":
        parts["weights"] = BF16 * shape.parameters
        parts["gradients"] = BF16 * 2 * unit
    else:
        # Weights and gradients are bfloat16, the master and the state are float32.
        kept = FP32 * (1 + STATES[configuration.optimizer])
        parts["weights, gradients, master and state"] = (2 * BF16 + kept) * shape.parameters
    return parts


def pieces(configuration: Configuration, room: int | None) -> int:
    """Return the smallest number of micro-batches whose estimated bytes fit the device.

    If the bytes fit for no number, return the number of samples.
    """
    choices = [
        number
        for number in range(1, configuration.samples + 1)
        if configuration.samples % number == 0
    ]
    if configuration.subject == "torchao":
        return 1  # gradients are offloaded during the backward and cannot accumulate
    if room is None:
        return choices[0]
    fitting = (one for one in choices if sum(device(configuration, one).values()) <= 0.9 * room)
    return next(fitting, choices[-1])


def shortage(configuration: Configuration, room: int | None) -> str | None:
    """Return one line: the reason why the configuration does not fit into RAM. None if it fits."""
    parts = host(configuration)
    total = sum(parts.values())
    if room is None or total <= room:
        return None
    listed = ", ".join(f"{what} {size / 1e9:.1f}" for what, size in parts.items())
    return f"needs {total / 1e9:.1f} GB of RAM, {room / 1e9:.1f} GB is there: {listed} GB"
