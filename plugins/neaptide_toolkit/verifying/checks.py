"""What a verification checks. Each check returns the first difference of runs with some plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide_toolkit.testing.parting import Parting

from .differences import ALL, Difference, after_loading, beyond, failed, first
from .watching import Wish

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .bisecting import Names
    from .runs import Runs
    from .watching import Watched

COARSE = 2.0**-6
"""The least tolerance where something computes with 16 bits."""


@attrs.frozen(eq=False)
class Checks:
    """The checks of a stack. `detail` repeats a run and keeps tensors, to tell by how much."""

    runs: Runs
    reference: Callable[[Wish], Watched]
    """The run that an exact stack must equal."""

    def training(
        self, names: Names, settings: Mapping[str, Any] | None = None, *, until: int | None = None
    ) -> Difference | None:
        """Compare losses, gradients, weights, buffers, optimizer and random state to the bit."""
        found = self.runs.of(names, Wish(until=until), settings)
        return first(self.reference(Wish()), found)

    def training_by_how_much(self, names: Names, seen: Difference) -> Difference:
        """Return the difference again, with amounts."""
        if seen.step is None:
            wish = Wish(keep_traces=True)
        else:
            wish = Wish(keep=frozenset({seen.step}), until=max(1, seen.step))
        again = first(self.reference(wish), self.runs.of(names, wish))
        return again if again is not None and again.step == seen.step else seen

    def tolerance(
        self, names: Names, settings: Mapping[str, Any] | None = None
    ) -> Difference | None:
        """Compare with the foundation, within the declared tolerance."""
        stack = self.runs.stack
        wish = Wish(keep=frozenset({0, 1}), dropless=True)
        expected = self.runs.of(stack.foundation, wish)
        rtol = stack.rtol(names)
        halves = any(
            value.dtype.itemsize < 4  # noqa: PLR2004 - bytes of float32
            for name, value in expected.moments[0].items()
            if name.startswith("weights/") and value.is_floating_point()
        )
        if halves or any("autocast" in spec.claims for spec in stack.specs.values()):
            rtol = max(rtol, COARSE)
        found = self.runs.of(names, wish, settings)
        return beyond(expected, found, rtol)

    def draws_otherwise(self, found: Difference) -> bool:
        """Return whether a difference beyond a tolerance may come of other random numbers.

        The run without these plugins then draws some in its first step, though nothing is dropped.
        """
        wish = Wish(keep=frozenset({0, 1}), dropless=True, until=1)
        return found.culprit is None and self.runs.of(self.runs.stack.foundation, wish).draws

    def left_by(self, kind: str, *, refuse: bool = False) -> Any:
        """Return the check that `kind` leaves no trace in a run."""

        def check(
            names: Names, settings: Mapping[str, Any] | None = None, *, keep: bool = False
        ) -> Difference | None:
            wish = Wish(refuse=refuse, saves=kind == "save", keep_traces=keep)
            notes = self.runs.of(names, wish, settings)
            for trace in notes.traces:
                if trace.kind == kind:
                    kinds = tuple(dict.fromkeys(one.name.split("/")[0] for one in trace.partings))
                    return Difference(trace.step, trace.partings[0], kinds)
            return None

        return check

    def resume(
        self,
        names: Names,
        settings: Mapping[str, Any] | None = None,
        *,
        keep: int | None = None,
    ) -> Difference | None:
        """Go on from a checkpoint in the middle; nothing may differ from the unbroken run."""
        whole, again = self.runs.resumed(names, settings, keep=keep)
        if whole.error is not None:
            return failed(whole)
        if again.loaded is None:
            return failed(again)
        step = min(whole.saved)
        found = after_loading(whole.saved[step], again.loaded)
        if found is not None:
            return attrs.evolve(found, step=step)
        again.moments.pop(step, None)  # gradients and the batch are not there at the start
        return first(whole, again, ALL)

    def removed(self, names: Names, settings: Mapping[str, Any] | None = None) -> Difference | None:
        """No plugin may be removed because it raises an error."""
        notes = self.runs.of(names, Wish(), settings)
        if not notes.removed:
            return None
        parting = Parting("the run", "went on without it, because it raised an error")
        return Difference(None, parting, culprit=notes.removed[0])

    def races(self, names: Names, settings: Mapping[str, Any] | None = None) -> Difference | None:
        """No two operations may race on the simulated GPU."""
        notes = self.runs.of(names, Wish(bare=True), settings)
        if notes.races:
            return Difference(None, Parting("memory", f"is raced for: {notes.races[0]}"))
        return failed(notes)


def says(found: Difference, expected: str) -> str:
    """Return a difference in one line."""
    if found.culprit is not None or found.parting.name in ("the run", "memory"):
        when = "" if found.step is None else f"after update {found.step}: "
        return f"{when}{found.parting}"
    when = "at the end" if found.step is None else f"at update {found.step}"
    module = f" of module {found.module}" if found.module else ""
    others = [kind for kind in found.kinds if not found.parting.name.startswith(kind)]
    more = f"; so do {', '.join(others)}" if others else ""
    return f"first {when}{module}: {found.parting}, {expected}{more}"
