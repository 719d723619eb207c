"""Computes the memory of int8 weights for the memory ledger, the memory estimate of a phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide.api.memory import MOMENTS

from .scheme import bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from neaptide import Ledger, Phase
    from neaptide.api.memory import Moment, Tier

    from .config import Int8Config
    from .full_weights import FullWeights
    from .scheme import Scheme
    from .targets import Target

OWNER = "int8"


@attrs.frozen
class Footprint:
    """The bytes that int8 storage of one weight frees, and the bytes of the weight's codes."""

    freed: int
    """Bytes freed on the device when the full weight is evicted."""
    codes: int
    """Bytes of the codes, scales and zero points."""
    tier: Tier
    """Where the codes are stored."""


def footprints(
    targets: Iterable[Target], scheme: Scheme, full_weights: FullWeights, *, trained: bool
) -> list[Footprint]:
    """Return the footprint of each weight.

    Args:
        targets: the quantized weights.
        scheme: the encoding of the targets.
        full_weights: access to the full weights.
        trained: whether int8 training runs. If so, the full weights are already evicted.
    """
    return [
        Footprint(
            target.parameter.nbytes if trained or full_weights.frees(target) else 0,
            bytes_of(target.parameter.shape, scheme, target.channel),
            "device" if full_weights.is_resident(target) else "host",
        )
        for target in targets
    ]


def estimated(
    ledger: Ledger, phase: Phase, config: Int8Config, entries: Iterable[Footprint]
) -> Ledger:
    """Return a phase's memory ledger in which codes replace weights, as the settings require."""
    before = (
        "full" if phase.applies_prediction else phase.name
    )  # Predict starts with the weights of Full
    if config.is_int8(before):
        return trained(ledger, entries)
    moments: set[Moment] = set()
    if phase.applies_prediction and config.is_int8("predict"):
        moments.update(MOMENTS)  # every moment of a Predict phase belongs to the jump
    moments.discard("evaluate")
    if config.is_int8("evaluate"):
        moments.add("evaluate")
    return held(ledger, entries, frozenset(moments))


def summary(targets: Sequence[Target], among: int, entries: Iterable[Footprint]) -> str:
    """Return a line of text about the quantized weights.

    The line states how many of `among` weights are quantized, and their bytes as int8 and as full
    weights.
    """
    full = sum(target.parameter.nbytes for target in targets)
    codes = sum(entry.codes for entry in entries)
    return f"{len(targets)} of {among} weights as int8: {codes} bytes in place of {full}"


def held(ledger: Ledger, footprints: Iterable[Footprint], moments: frozenset[Moment]) -> Ledger:
    """Return the ledger with codes in use and full weights in RAM during `moments` of a step."""
    return _replaced(ledger, footprints, moments, "host") if moments else ledger


def trained(ledger: Ledger, footprints: Iterable[Footprint]) -> Ledger:
    """Return the memory ledger of a phase that stores weights only as codes.

    During the update the decoded weights are in memory, too.
    """
    entries = list(footprints)
    full = sum(entry.freed for entry in entries)
    ledger = _replaced(ledger, entries, None, None)
    return ledger.add(OWNER, "weights.decoded", "device", full, ("update",))


def _replaced(
    ledger: Ledger,
    footprints: Iterable[Footprint],
    moments: frozenset[Moment] | None,
    target: Tier | None,
) -> Ledger:
    during = {} if moments is None else {"moments": moments}
    for entry in footprints:
        if entry.freed:
            ledger = ledger.move("weights", "device", target, entry.freed, **during)
        ledger = ledger.add(OWNER, "weights.int8", entry.tier, entry.codes, **during)
    return ledger
