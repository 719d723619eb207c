"""What fits a card and RAM: the largest model of a family, the longest context, and how."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs

from neaptide_toolkit.machine import profiles
from neaptide_verbs.plan.auto.choosing import MARGIN
from neaptide_verbs.plan.auto.rungs import largest
from scaling.fits.trials import FEW, WINDOW, WINDOWS, Trial, Way, ladder
from scaling.on_cards import GIB, SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Dry = dict[str, Any]
    Run = Callable[[Trial], Dry]
    """Returns the dry run of a trial."""

RAM = (32, 64, 128, None)
"""GiB of RAM; None is as much as is needed."""
TIGHT = (Way(pieces=WINDOWS), Way(pieces=WINDOWS, halves=True))
"""Ways that take the least of the card, and of RAM."""
MODELS = {"1B": (2048, 18), "7B": (4096, 32)}
"""Width and blocks of the models whose context grows."""
STEP, LENGTHS = 2048, 1024
"""Contexts are multiples of 2,048 tokens, up to 2 million."""
SHORT = (7, 15)
"""Two contexts whose line is the first guess."""
FIRST = 100
"""A rung of about 8B."""
BYTES = {"adamw": 12.0}
"""Of a parameter in RAM."""


@attrs.frozen
class Machine:
    """A card and RAM."""

    card: str
    ram: int | None
    """GiB; None is as much as is needed."""

    @property
    def caps(self) -> dict[str, float]:
        """Return the bytes that may be used, by tier."""
        capacity = profiles.load(self.card).rates.capacity
        ram = math.inf if self.ram is None else self.ram * GIB - SYSTEM
        return {"device": capacity * (1 - MARGIN), "ram": ram}

    def bytes_of(self, made: Dry) -> dict[str, int]:
        """Return what a dry run needs, by tier."""
        return {"device": made["device"][self.card], "ram": made["ram"]}

    def shares(self, made: Dry) -> dict[str, float]:
        """Return what a dry run needs, as a share of what may be used, by tier."""
        needed = self.bytes_of(made)
        return {tier: needed[tier] / most for tier, most in self.caps.items()}

    def need(self, made: Dry) -> float:
        """Return the larger of the two shares."""
        return max(self.shares(made).values())

    def binds(self, made: Dry) -> str:
        """Return the tier with the larger share."""
        shares = self.shares(made)
        return max(shares, key=lambda tier: shares[tier])


def machines(cards: Sequence[str]) -> Iterator[Machine]:
    """Yield all machines."""
    for card in cards:
        for ram in RAM:
            yield Machine(card, ram)


def in_ram(trial: Trial) -> int:
    """Return the bytes of weights, optimizer state and inputs of all blocks."""
    shape, tokens = trial.shape, trial.windows * trial.context
    inputs = tokens * shape.width * 2 * (2 if trial.way.halves else 1)
    kept = int(shape.block_parameters * BYTES[trial.optimizer])
    return shape.blocks * (kept + inputs * (trial.way.inputs == "host"))


def of_few_blocks(trial: Trial, run: Run) -> Dry:
    """Return what a trial takes, by a dry run of the same model with few blocks.

    The card has the same bytes: it holds some blocks of many. Those of RAM grow with each block.
    """
    few = attrs.evolve(trial, blocks=FEW)
    made = run(few)
    more = in_ram(trial) - in_ram(few)
    return {"device": made["device"], "ram": made["ram"] + more}


def largest_model(machine: Machine, optimizer: str, run: Run) -> dict[str, Any]:
    """Return the row of the largest model, which was dry run whole, and so was the next one.

    Where RAM is as much as is needed, both were run with few blocks.
    """
    rungs, caps = [*ladder()], machine.caps
    best: tuple[int, Trial, Dry] | None = None
    whole = machine.ram is not None
    for way in TIGHT:

        def trial(rung: int, way: Way = way) -> Trial:
            return Trial(optimizer, *rungs[rung], WINDOWS, WINDOW, way)

        def seems(rung: int, trial: Callable[[int], Trial] = trial) -> bool:
            one = trial(rung)
            return in_ram(one) <= caps["ram"] and machine.need(of_few_blocks(one, run)) <= 1

        def made(rung: int, trial: Callable[[int], Trial] = trial) -> Dry:
            one = trial(min(rung, len(rungs) - 1))
            return run(one) if whole else of_few_blocks(one, run)

        def does(rung: int, made: Callable[[int], Dry] = made) -> bool:
            return machine.need(made(rung)) <= 1

        if best is not None and not seems(best[0] + 1):
            continue  # it is no better

        def has_ram(rung: int, trial: Callable[[int], Trial] = trial) -> bool:
            return in_ram(trial(rung)) <= caps["ram"]

        first, step = FIRST, 16
        if whole:  # RAM may bind: the guess is there
            first, step = largest(len(rungs), has_ram, 0), 1
        guess = largest(len(rungs), seems, first, step)
        found = largest(len(rungs), does, guess)
        if best is None or found > best[0]:
            best = found, trial(found), made(found + 1)
    assert best is not None
    rung, tight, above = best
    chosen, dry = roomiest(machine, tight, run) if whole else (tight, of_few_blocks(tight, run))
    return row(machine, chosen, dry, machine.binds(above)) | {
        "parameters": tight.shape.parameters,
        "is_last": rung + 1 == len(rungs),
        "least": machine.bytes_of(dry if chosen == tight else run(tight))["device"],
    }


def roomiest(machine: Machine, tight: Trial, run: Run) -> tuple[Trial, Dry]:
    """Return the trial in the way that the plan chooses, if there is one that fits."""
    ram = None if machine.ram is None else int(machine.caps["ram"])
    other = attrs.evolve(tight, machine=(machine.card, ram))
    made = run(other)
    return (other, made) if made["fits"] else (tight, run(tight))


def longest_context(
    machine: Machine, model: str, optimizer: str, run: Run
) -> dict[str, Any] | None:
    """Return the row of the longest context of one sequence; None if no context fits.

    Inputs of blocks wait in RAM; if RAM binds, on the card.
    """
    best: tuple[Trial, Dry] | None = None
    for inputs in ("host", "device"):
        if inputs == "device" and (best is None or machine.binds(best[1]) == "device"):
            break

        def trial(rung: int, inputs: str = inputs) -> Trial:
            return Trial(optimizer, *MODELS[model], 1, (rung + 1) * STEP, Way(inputs=inputs))

        def does(rung: int, trial: Callable[[int], Trial] = trial) -> bool:
            return machine.need(run(trial(rung))) <= 1

        guess = _on_line(machine, trial, run)
        found = largest(LENGTHS, does, guess, step=1 + guess // 64)
        if found >= 0 and (best is None or trial(found).context > best[0].context):
            best = trial(found), run(trial(min(found + 1, LENGTHS - 1)))
    if best is None:
        return None
    chosen, above = best
    return row(machine, chosen, run(chosen), machine.binds(above)) | {"context": chosen.context}


def _on_line(machine: Machine, trial: Callable[[int], Trial], run: Run) -> int:
    """Return the rung at which a line through two short contexts reaches what there is."""
    first, second = (machine.bytes_of(run(trial(rung))) for rung in SHORT)
    rungs = []
    for tier, most in machine.caps.items():
        slope = (second[tier] - first[tier]) / (SHORT[1] - SHORT[0])
        if slope > 0:
            rungs.append(SHORT[0] + (most - first[tier]) / slope)
    return int(min(max(0.0, min(rungs)), LENGTHS - 1))


def row(machine: Machine, trial: Trial, made: Dry, binds: str) -> dict[str, Any]:
    """Return what all rows have."""
    tokens, bound = made["cards"][machine.card] if "cards" in made else (None, None)
    return {
        "card": machine.card,
        "ram_gib": machine.ram,
        "optimizer": trial.optimizer,
        "width": trial.width,
        "blocks": trial.blocks,
        "way": made.get("way", str(trial.way)),
        **machine.bytes_of(made),
        "binds": binds,
        "tokens_per_s": tokens,
        "bound_by": bound,
    }
