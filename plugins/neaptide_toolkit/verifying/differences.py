"""Compares what was noted of two runs: the first step, module and tensor in which they differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_toolkit.testing.parting import Parting, gap_of, partings

from .state import digested

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .watching import Watched

SAME = (
    "batch",
    "jump",
    "loss",
    "gradients",
    "clipped",
    "weights",
    "trained",
    "tied",
    "buffers",
    "optimizer",
    "random",
)
"""What an exact plugin must not change."""
ALL = (*SAME, "evaluation", "training", "plugins", "extra", "model")
_OF_MODULES = frozenset(
    {"jump", "gradients", "clipped", "weights", "trained", "tied", "buffers", "optimizer", "model"}
)
LATER, UPDATE = 1e-2, 5e-2
"""Relative tolerances beside the declared ones: of later losses, and of the first update."""


@attrs.frozen
class Difference:
    """The first difference of two runs.

    Attributes:
        step: number of the update; 0 is before the first, None where no update is meant.
        parting: the first value that differs.
        kinds: the kinds of values that differ at this step.
        culprit: the plugin whose hook raised an error, if any.
    """

    step: int | None
    parting: Parting
    kinds: tuple[str, ...] = ()
    culprit: str | None = None

    @property
    def module(self) -> str:
        """The name of the module that has the tensor; empty if it is no module's."""
        kind, _, name = self.parting.name.partition("/")
        if kind == "optimizer":
            name = name.partition("/")[0]
        if kind not in _OF_MODULES:
            return ""
        return name.rpartition(".")[0]


def failed(notes: Watched) -> Difference | None:
    """Return the error that ended a run, as a difference."""
    if notes.error is None:
        return None
    step = max(notes.moments, default=0)
    return Difference(step, Parting("the run", f"ends with {notes.error}"), culprit=notes.culprit)


def first(
    expected: Watched, found: Watched, kinds: Iterable[str] = (*SAME, "evaluation", "model")
) -> Difference | None:
    """Return the first difference of two runs, to the bit; None if there is none.

    Gradients are compared if both runs have them: some stores drop them during the backward.
    """
    wanted = frozenset(kinds)
    for step in sorted(expected.moments.keys() & found.moments.keys()):
        every = _differing(expected.moments[step], found.moments[step], wanted)
        if every:
            return _difference(step, every)
    error = failed(found)
    if error is not None:
        return error
    if max(expected.moments) == max(found.moments) and expected.end and found.end:
        every = _differing(expected.end, found.end, wanted)
        if every:
            return _difference(None, every)
    return None


def after_loading(saved: Mapping[str, Any], loaded: Mapping[str, Any]) -> Difference | None:
    """Return what a checkpoint did not restore."""
    every = _differing(saved, loaded, frozenset(SAME))
    return _difference(None, every) if every else None


def _differing(
    expected: Mapping[str, Any], found: Mapping[str, Any], kinds: frozenset[str]
) -> list[Parting]:
    one, other = (
        {name: value for name, value in each.items() if name.partition("/")[0] in kinds}
        for each in (expected, found)
    )
    for name in [*one, *other]:
        if name.startswith(("gradients/", "clipped/")) and not (name in one and name in other):
            one.pop(name, None)
            other.pop(name, None)
    if ("evaluation" in one) != ("evaluation" in other):
        one.pop("evaluation", None)
        other.pop("evaluation", None)
    return partings(one, other)


def _difference(step: int | None, every: list[Parting]) -> Difference:
    kinds = tuple(dict.fromkeys(one.name.partition("/")[0] for one in every))
    return Difference(step, every[0], kinds)


def is_the_same_run(one: Watched, other: Watched, step: int) -> bool:
    """Return whether a moment has the same bits in both; tensors are digested."""
    values = [
        {
            name: digested(value) if isinstance(value, torch.Tensor) else value
            for name, value in each.moments[step].items()
            if name.partition("/")[0] in SAME
        }
        for each in (one, other)
    ]
    return values[0] == values[1]


def beyond(expected: Watched, found: Watched, rtol: float) -> Difference | None:
    """Return the first difference that is larger than a tolerance; None if there is none.

    The first update is compared: its loss, and each gradient, relative to the largest gradient of
    the model. (A gradient that is zero but for rounding, such as that of the bias of a key, has no
    correct digits, and Adam makes a whole step of it.) The first change of all weights may differ
    by 5 %, in the L1 norm, and later losses by 1 % or 1000 `rtol`.

    Args:
        expected: has the tensors of the moments 0 and 1.
        found: likewise.
        rtol: the declared tolerance.
    """
    error = failed(found)
    if error is not None:
        return error
    start, one, other = expected.moments[0], expected.moments[1], found.moments[1]
    early = _of_update(one, other, rtol) or _of_weights(start, one, other, max(UPDATE, 100 * rtol))
    if early is not None:
        return Difference(1, early, (early.name.partition("/")[0],))
    for step in sorted(expected.moments.keys() & found.moments.keys()):
        losses = [
            {"loss": each.moments[step]["loss"]} if "loss" in each.moments[step] else {}
            for each in (expected, found)
        ]
        every = partings(*losses, rtol=max(LATER, 1000 * rtol))
        if every:
            return _difference(step, every)
    return None


def _of_update(one: Mapping[str, Any], other: Mapping[str, Any], rtol: float) -> Parting | None:
    every = partings({"loss": one["loss"]}, {"loss": other["loss"]}, rtol=rtol)
    if every:
        return every[0]
    names = [name for name in one if name.startswith("gradients/") and name in other]
    largest = max((float(one[name].abs().max()) for name in names if one[name].numel()), default=0)
    for name in names:
        if one[name].shape != other[name].shape:
            return partings({name: one[name]}, {name: other[name]})[0]
        gap, share = gap_of(one[name], other[name])
        own = float(one[name].abs().max()) if one[name].numel() else 0.0
        if not gap * own <= rtol * largest and gap:
            return Parting(name, "has other values", gap, share)
    return None


def _of_weights(
    start: Mapping[str, Any], one: Mapping[str, Any], other: Mapping[str, Any], most: float
) -> Parting | None:
    names = [name for name in one if name.startswith("weights/")]
    missing = [name for name in names if name not in other]
    if missing:
        return Parting(missing[0], "is missing")
    moved = sum(_distance(start[name], one[name]) for name in names)
    apart = {name: _distance(one[name], other[name]) for name in names}
    if sum(apart.values()) <= most * moved:
        return None
    worst = max(apart, key=lambda name: apart[name])
    return Parting(
        worst, "was changed otherwise by the first update", *gap_of(one[worst], other[worst])
    )


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).abs().sum())
