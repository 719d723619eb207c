"""The streamed configurations on several cards, by the plan: nothing is measured."""

from __future__ import annotations

import json
import sys
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

import torch

from neaptide import Task
from neaptide.hooks.enabling import configured
from neaptide_toolkit.machine import profiles
from neaptide_verbs.plan.machine import PlannedMachine
from neaptide_verbs.plan.planning import plans
from scaling.configurations import SHAPES, Configuration, configurations
from scaling.decoder import Decoder, loss_fn
from scaling.table import put_into

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

GIB = 2**30
CARDS = ("h200", "a100", "rtx4090", "rtx3090", "rtx4080", "rtx4070", "t4")
RAM = (32, 64, 128)
"""GiB of RAM; 2 GiB of them are left for the system."""
SYSTEM = 2 * GIB
TOKENS = 16_384
BEGIN, END = "<!-- on cards: begin -->", "<!-- on cards: end -->"
HUGE = 2**60
_NONE: dict[str, Any] = {"cards": ()}


def decoder(model: str) -> Task:
    """Return a model for a plan, which computes no values."""
    with torch.device("meta"):
        made = Decoder(SHAPES[model], torch.bfloat16, "meta", "meta")
    return Task(made.to_empty(device="cpu"), loss_fn)


def tokens(samples: int, sequence: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return one batch."""
    whole = torch.zeros(samples, sequence + 1, dtype=torch.long)
    return [(whole[:, :-1], whole[:, 1:])]


def chosen() -> list[Configuration]:
    """Return what is planned: the streamed configurations with 16,384 tokens, once each."""
    every = configurations()
    found = {
        (each.model, each.optimizer): each
        for each in every
        if each.subject == "streamed" and each.tokens == TOKENS
    }
    return [*found.values()]


def settings(configuration: Configuration) -> dict[str, Any]:
    """Return the configuration of a run, with as many micro-batches as there are sequences."""
    samples, sequence = configuration.batch
    options = {} if configuration.optimizer == "adamw" else {"momentum": 0.0}
    if configuration.optimizer == "momentum":
        options = {"momentum": 0.9}
    return {
        "model": {"name": f"{__name__}:decoder", "options": {"model": configuration.model}},
        "data": {
            "name": f"{__name__}:tokens",
            "options": {"samples": samples, "sequence": sequence},
        },
        "train": {"device": "cpu", "check_finite": False, "clip_norm": 1.0},
        "optimizer": {
            "name": "adamw" if configuration.optimizer == "adamw" else "sgd",
            "lr": 1e-4,
            "options": options,
        },
        "plugins": {
            "layer-streaming": {
                "blocks": "blocks.*.*" if configuration.halves else "blocks.*",
                "update": "in_backward",
                "optimizer_on": "device",
                "clip": "lagged",
                "master": configuration.master,
                "inputs": "host",
                "micro_batches": samples,
            }
        },
    }


def planned(configuration: Configuration, cards: Sequence[str] = CARDS) -> dict[str, Any]:
    """Return what a configuration needs, and its speed on each card."""
    machines = [
        PlannedMachine(name=name, device=HUGE, host=HUGE, rates=profiles.load(name).rates)
        for name in cards
    ]
    made = plans(configured(settings(configuration))[0], machines)
    return {
        "case": configuration.case,
        "model": configuration.model,
        "optimizer": configuration.optimizer,
        "device": made[0].peak_bytes["device"],
        "ram": made[0].peak_bytes["RAM"],
        "cards": {
            name: {
                "seconds": one.seconds_per_step,
                "tokens": one.tokens_per_second,
                "bound": one.bound_by,
                "busy": dict(one.busy),
            }
            for name, one in zip(cards, made, strict=True)
        },
    }


def write(cards: str, only: str, file: Path | None, page: Path | None) -> int:
    """Plan the configurations that `only` names and the file lacks; write file, page and table."""
    names = CARDS if cards == "all" else tuple(cards.split(","))
    there = file is not None and file.exists()
    found: dict[str, dict[str, Any]] = json.loads(file.read_text("utf-8")) if file and there else {}
    for configuration in chosen():
        key = f"{configuration.model} {configuration.optimizer}"
        if fnmatch(configuration.key, only) and set(names) - set(found.get(key, _NONE)["cards"]):
            found[key] = planned(configuration, names)
            if file is not None:
                file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    text = table([*found.values()])
    if page is not None:
        put_into(page, text, BEGIN, END)
    sys.stdout.write(f"{text}\n")
    return 0


def table(found: Sequence[dict[str, Any]]) -> str:
    """Return the rows as Markdown: what each needs, and tokens/s and what binds by card."""
    cards = list(found[0]["cards"])
    names = [f"{name}, {profiles.load(name).rates.capacity / GIB:.0f} GiB" for name in cards]
    head = ("case", "model", "optimizer", "card GiB", "RAM GiB", "of 32, 64, 128", *names)
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in found:
        fits = [str(ram) for ram in RAM if row["ram"] + SYSTEM <= ram * GIB]
        need = [f"({row[tier] / GIB:.1f})" for tier in ("device", "ram")]
        first = (row["case"], row["model"], row["optimizer"], *need, ", ".join(fits) or "none")
        lines.append("| " + " | ".join((*first, *(_cell(row, name) for name in cards))) + " |")
    return "\n".join(lines)


def _cell(row: dict[str, Any], name: str) -> str:
    card = row["cards"][name]
    if row["device"] > profiles.load(name).rates.capacity:
        return "no"
    share = card["busy"][card["bound"]] / card["seconds"]
    return f"{card['tokens']:.0f}, {card['bound']} {share:.2f}"
