"""Trials of `simulated/fits.py`: a model of a family, how it trains, and what its dry run takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide import Task
from neaptide.hooks.enabling import configured
from neaptide_toolkit.machine import profiles
from neaptide_verbs.plan.auto.choosing import chosen
from neaptide_verbs.plan.machine import PlannedMachine
from neaptide_verbs.plan.planning import plans
from scaling.decoder import Decoder, Shape, loss_fn
from scaling.on_cards import CARDS, HUGE, tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neaptide_verbs.plan.value import Plan

HEAD_SIZE, VOCABULARY = 128, 32_000
WINDOW, WINDOWS = 2048, 8
"""Tokens of a window, and windows of an update, where the model is what grows."""
FEW = 5
"""Blocks of a dry run that stands for one of many."""


def shape_of(width: int, blocks: int) -> Shape:
    """Return a decoder whose heads have 128 values, and whose SwiGLU is 8/3 as wide, rounded up.

    With as many blocks as heads, the widths 4096, 5120 and 8192 are the 7B, 13B and 50B of
    `scale.py`.
    """
    hidden = -(-8 * width // 3 // 256) * 256
    return Shape(blocks, width, width // HEAD_SIZE, hidden, VOCABULARY)


CHOSEN = ("max_active_layers", "optimizer_slots", "micro_batches")
"""What the plan chooses, and with it the number of resident blocks."""


@attrs.frozen
class Way:
    """How a model is streamed.

    Attributes:
        slots: of weights.
        state_slots: slots of the optimizer's state.
        pieces: micro-batches.
        halves: True if attention and MLP are blocks of their own.
        inputs: where the inputs of blocks wait: `host` or `device`.
    """

    slots: int = 1
    state_slots: int = 1
    pieces: int = 1
    halves: bool = False
    inputs: str = "host"

    def __str__(self) -> str:
        """Return the way in a few words."""
        parts = [f"{self.slots} and {self.state_slots} slots", f"{self.pieces} micro-batches"]
        parts += ["halves"] * self.halves + ["inputs on the card"] * (self.inputs == "device")
        return ", ".join(parts)


@attrs.frozen
class Trial:
    """A model, an optimizer, a batch and a way."""

    optimizer: str
    width: int
    blocks: int
    windows: int
    context: int
    way: Way
    machine: tuple[str, int | None] | None = None
    """A card and bytes of RAM for which the plan chooses slots and micro-batches."""

    @property
    def key(self) -> str:
        """Return the name under which its dry run is kept."""
        model = f"{self.optimizer} {self.blocks} x {self.width}"
        if self.machine is None:
            return f"{model}, {self.windows} x {self.context}, {self.way}"
        card, ram = self.machine
        halves = ", halves" * self.way.halves
        return f"{model}, {self.windows} x {self.context}, chosen for {card} and {ram}{halves}"

    @property
    def shape(self) -> Shape:
        """Return the model's sizes."""
        return shape_of(self.width, self.blocks)


def ladder(first: int = 8, last: int = 200) -> Iterator[tuple[int, int]]:
    """Yield widths and blocks of models, each with a block more, or the next width.

    A width of n heads has n blocks or more, as long as it has fewer parameters than n + 1 heads.
    """
    for heads in range(first, last):
        width, blocks = heads * HEAD_SIZE, heads
        above = shape_of(width + HEAD_SIZE, heads + 1).parameters
        while shape_of(width, blocks).parameters < above:
            yield width, blocks
            blocks += 1


def decoder(width: int, blocks: int) -> Task:
    """Return a model for a plan, which computes no values."""
    with torch.device("meta"):
        made = Decoder(shape_of(width, blocks), torch.bfloat16, "meta", "meta")
    return Task(made.to_empty(device="cpu"), loss_fn)


def settings(trial: Trial) -> dict[str, Any]:
    """Return the configuration of a run."""
    way = trial.way
    streaming: dict[str, Any] = {
        "blocks": "blocks.*.*" if way.halves else "blocks.*",
        "update": "in_backward",
        "clip": "lagged",
        "optimizer_on": "device",
        "master": "split" if trial.optimizer == "adamw" else "weights",
        "inputs": way.inputs,
        "micro_batches": way.pieces,
        "max_active_layers": way.slots,
        "prefetch_distance": max(1, way.slots - 1),
        "optimizer_slots": way.state_slots,
        "resident": 0,
    }
    if trial.machine is not None:
        streaming |= dict.fromkeys((*CHOSEN, "resident"), "auto") | {"prefetch_distance": 1}
    model = {"width": trial.width, "blocks": trial.blocks}
    data = {"samples": trial.windows, "sequence": trial.context}
    return {
        "model": {"name": f"{__name__}:decoder", "options": model},
        "data": {"name": f"{tokens.__module__}:{tokens.__name__}", "options": data},
        "train": {"device": "cpu", "check_finite": False, "clip_norm": 1.0},
        "optimizer": {"name": trial.optimizer, "lr": 1e-4},
        "plugins": {"layer-streaming": streaming},
    }


def planned(trial: Trial) -> dict[str, Any]:
    """Return the bytes of a dry run, of the device by card, and tokens a second and their bound.

    Copies end at other moments on other cards, so these have other peaks. Few blocks say nothing
    about the speed of many.
    """
    if trial.machine is not None:
        return _chosen(trial, *trial.machine)
    machines = [_machine(name, HUGE, HUGE) for name in CARDS]
    made = dict(zip(CARDS, plans(configured(settings(trial))[0], machines), strict=True))
    return _found(made) if trial.blocks != FEW else _bytes(made)


def _chosen(trial: Trial, card: str, ram: int | None) -> dict[str, Any]:
    capacity = profiles.load(card).rates.capacity
    machine = _machine(card, capacity, HUGE if ram is None else ram)
    config, made = chosen(configured(settings(trial))[0], machine)
    taken = config.plugins["layer-streaming"]
    way = attrs.evolve(
        trial.way,
        slots=taken.max_active_layers,
        state_slots=taken.optimizer_slots,
        pieces=taken.micro_batches,
    )
    stay = f", {taken.resident} blocks stay" if taken.resident else ""
    return _found({card: made}) | {"fits": made.fits, "way": f"{way}{stay}"}


def _machine(card: str, device: int, ram: int) -> PlannedMachine:
    return PlannedMachine(name=card, device=device, host=ram, rates=profiles.load(card).rates)


def _bytes(made: dict[str, Plan]) -> dict[str, Any]:
    first = next(iter(made.values()))
    device = {card: one.peak_bytes["device"] for card, one in made.items()}
    return {"device": device, "ram": first.peak_bytes["RAM"]}


def _found(made: dict[str, Plan]) -> dict[str, Any]:
    speeds = {
        card: [round(one.tokens_per_second or 0.0, 1), one.bound_by] for card, one in made.items()
    }
    return _bytes(made) | {"cards": speeds}
