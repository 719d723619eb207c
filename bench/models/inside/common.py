"""The model, the rows and the clock of all loops."""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

WORDS, ROWS = 8192, 2
FIRST = 2
"""Steps that are left out: the optimizer makes its state in the first."""
LR, NORM = 1e-3, 1.0

Timed = tuple[list[float], list[float]]
"""The median step in seconds, by each clock, and the losses."""


def model() -> Any:
    """Return a Llama of 10.6 million parameters."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=8,
        num_attention_heads=4,
    )
    return LlamaForCausalLM(config)


def rows(steps: int, tokens: int, pieces: int) -> list[dict[str, torch.Tensor]]:
    """Return the samples of a training."""
    generator = torch.Generator().manual_seed(0)
    count = (steps + FIRST + 1) * pieces * ROWS
    ids = torch.randint(WORDS, (count, tokens), generator=generator)
    return [{"input_ids": row, "labels": row} for row in ids]


class Clock:
    """Notes when each step ends, by the clock of the wall and by that of the process."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, float]] = []

    def ended(self) -> None:
        """Note the end of a step."""
        self._ends.append((time.perf_counter(), time.process_time()))

    def steps(self) -> list[float]:
        """Return the median seconds of the steps that count, by each clock."""
        by_clock = zip(*self._ends[FIRST:], strict=True)
        return [statistics.median(b - a for a, b in pairwise(ends)) for ends in by_clock]
