"""Measure the time that a NeaptideTrainer adds to a step of transformers' own Trainer.

    python bench/models/inside_trainers.py [--json PATH] [--rounds N] [--steps N] [--tokens N]

Both train the same Llama of 10 million parameters on the same batches, with clipping and a
schedule, without plugins. In each round both train anew, one after the other, in an order that
changes from round to round. A step lasts from the end of a step to the end of the next; the first
steps of a training are left out. A figure is the median, over the rounds, of the ratio of the two
median steps: in time of the wall, and in time of the process, which other programs on a machine
disturb less. The losses of both must be equal to the bit.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from neaptide_toolkit.integrations.transformers import NeaptideTrainer
from neaptide_toolkit.machine.facts import facts

_WORDS, _ROWS = 8192, 2
_FIRST = 2
"""Steps that are left out: the optimizer makes its state in the first."""
SUBJECTS = {"Trainer": Trainer, "NeaptideTrainer": NeaptideTrainer}


def model() -> Any:
    """Return a Llama of 10.6 million parameters."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_WORDS,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=8,
        num_attention_heads=4,
    )
    return LlamaForCausalLM(config)


class Clock(transformers.TrainerCallback):  # type: ignore[misc] - it has no types here
    """Notes when each step ends, by the clock of the wall and by that of the process."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, float]] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ends.append((time.perf_counter(), time.process_time()))

    def steps(self) -> list[float]:
        """Return the median seconds of the steps that count, by each clock."""
        by_clock = zip(*self.ends[_FIRST:], strict=True)
        return [statistics.median(b - a for a, b in pairwise(ends)) for ends in by_clock]


def trained(name: str, steps: int, tokens: int, pieces: int) -> tuple[list[float], list[float]]:
    """Return the median step in seconds, by each clock, and the losses."""
    generator = torch.Generator().manual_seed(0)
    count = (steps + _FIRST + 1) * pieces * _ROWS
    ids = torch.randint(_WORDS, (count, tokens), generator=generator)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=1,
            log_level="error",
            per_device_train_batch_size=_ROWS,
            gradient_accumulation_steps=pieces,
            num_train_epochs=1,
        )
        data = [{"input_ids": row, "labels": row} for row in ids]
        trainer = SUBJECTS[name](model(), arguments, train_dataset=data, callbacks=[clock])
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return clock.steps(), losses


def measure(rounds: int, steps: int, tokens: int, pieces: int) -> dict[str, Any]:
    """Return the figures for one number of micro-batches in an update."""
    taken: dict[str, list[list[float]]] = {name: [] for name in SUBJECTS}
    order, shuffle = list(SUBJECTS), random.Random(0)  # noqa: S311 - random order, no secret
    for _ in range(rounds):
        shuffle.shuffle(order)
        losses = []
        for name in order:
            seconds, found = trained(name, steps, tokens, pieces)
            taken[name].append(seconds)
            losses.append(found)
        assert losses[0] == losses[1], "both make the same computation"
    row: dict[str, Any] = {"gradient_accumulation_steps": pieces}
    for place, clock in enumerate(("wall", "process")):
        theirs, ours = ([one[place] for one in taken[name]] for name in SUBJECTS)
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
        row[clock] = {
            "trainer_ms": statistics.median(theirs) * 1e3,
            "neaptide_trainer_ms": statistics.median(ours) * 1e3,
            "ratio": statistics.median(ratios),
            "ratio_quartiles": statistics.quantiles(ratios, n=4)[::2],
        }
    return row


def main() -> None:
    """Measure, print a line for each row, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for pieces in (1, 4):
        rows.append(measure(options.rounds, options.steps, options.tokens, pieces))
        print(json.dumps(rows[-1]))
    if options.json:
        found = {"machine": facts(), "options": vars(options), "rows": rows}
        found["transformers"] = transformers.__version__
        Path(options.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
