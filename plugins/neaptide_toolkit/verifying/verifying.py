"""The checks of a stack, one after the other, and who is guilty of what they find."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from neaptide.errors import ModelError
from neaptide.hooks.enabling import PREDICTOR

from .against import Changes
from .bisecting import guilty, guilty_settings
from .checks import Checks, says
from .differences import Difference, is_the_same_run
from .value import MemoryPeaks, ModelSlice, Verification, VerifyFinding
from .watching import Wish

if TYPE_CHECKING:
    from .bisecting import Differs, Names
    from .runs import Runs
    from .watching import Watched


class Verifier:
    """Makes the runs, compares them, and notes what differs and who is guilty."""

    def __init__(
        self, runs: Runs, other: Runs | None, part: ModelSlice | None, *, memory: bool
    ) -> None:
        self._began = time.monotonic()
        self._runs, self._stack, self._memory = runs, runs.stack, memory
        self._whole = frozenset(self._stack.specs)
        self._findings: list[VerifyFinding] = []
        self._slice = part
        self._checks: list[str] = []
        self._notes: list[str] = []
        self._base = self._stack.foundation | self._stack.tolerant
        self._other = other

    def verify(self) -> Verification:
        """Run every check."""
        plain = self._reference(Wish())
        if plain.refusal is not None and self._other is None:
            raise plain.refusal
        if plain.error is not None:
            what = "without plugins" if self._other is None else "of the other configuration"
            msg = f"the run {what} fails, so there is nothing to compare with: {plain.error}"
            if self._slice is not None:
                msg += (
                    f" (with {len(self._slice.kept)} of {self._slice.blocks} blocks; if its "
                    f"forward needs all, build a smaller model by its own options @ model.options)"
                )
            raise ModelError(msg)
        refusal = self._runs.of(self._whole, Wish(saves=True)).refusal
        if refusal is not None:
            raise refusal
        self._check_no_trace()
        self._check_training()
        self._check_resume()
        self._check_jumps()
        self._check_races()
        measured = self._measured() if self._memory and not self._findings else None
        return self._verification(plain, measured)

    def _reference(self, wish: Wish) -> Watched:
        if self._other is not None:
            return self._other.of(self._other.stack.specs, wish)
        return self._runs.of(self._base, wish)

    def _check_training(self) -> None:
        checks = Checks(self._runs, self._reference)
        stack = self._stack
        if stack.tolerant and self._other is None:
            tolerance: Differs = checks.tolerance
            found = tolerance(stack.foundation | stack.tolerant)
            if found is not None and checks.draws_otherwise(found):
                self._notes.append(_DRAWS)
                found = None
            else:
                self._checks.append("plugins with a tolerance change the first update within it")
            if found is not None:
                rtol = stack.rtol(stack.tolerant)
                self._blame(
                    "tolerance",
                    found,
                    tolerance,
                    f"beyond the declared rtol {rtol:g}",
                    base=stack.foundation,
                    candidates=stack.tolerant,
                )
        self._checks.append(
            "loss, gradients, weights, buffers, optimizer and random state have the same bits"
        )
        found = checks.training(self._whole)
        if found is None:
            return
        if self._follows(found):
            return
        if self._repeats_otherwise(found):
            return
        expected = "exactness is declared"
        if self._other is not None:
            self._findings += Changes(self._runs, self._other).findings(found)
            return
        left = self._whole
        while found is not None:  # a later fault hides behind an earlier one
            until = None if found.step is None else max(1, found.step)
            names = self._blame(
                "training",
                found,
                partial(checks.training, until=until),
                expected,
                base=self._base,
                candidates=stack.exact & left,
                detail=checks.training_by_how_much,
            )
            left = frozenset(one for one in left if not stack.closed({one}) & names)
            found = checks.training(self._base | left) if names else None

    def _follows(self, found: Difference) -> bool:
        """Return whether a difference follows from the trace that something left."""
        last = self._runs.steps + 1 if found.step is None else found.step
        last += found.parting.name == "evaluation"  # it comes after its step
        return any(
            one.check in ("evaluation", "save")
            and one.difference is not None
            and (one.difference.step or 0) < last
            for one in self._findings
        )

    def _repeats_otherwise(self, found: Difference) -> bool:
        """Return whether the run without plugins differs from itself; then it is a finding."""
        step = found.step or self._runs.steps
        again = self._reference(Wish(keep=frozenset({step}), until=max(1, step)))
        if step in again.moments and is_the_same_run(self._reference(Wish()), again, step):
            return False
        text = (
            f"without plugins, two runs are not equal after {step} steps, so plugins cannot be "
            f"judged; draw random numbers from the default generators of torch, numpy or Python, "
            f"keep no state outside of the model and the optimizer, or use train.deterministic"
        )
        self._findings.append(VerifyFinding("repeat", (), None, (), text))
        return True

    def _check_no_trace(self) -> None:
        checks = Checks(self._runs, self._reference)
        self._checks.append("an evaluation and a save leave no trace")
        for kind in ("evaluation", "save"):
            check = checks.left_by(kind)
            found = check(self._whole)
            if found is not None:
                expected = f"after {_ARTICLE[kind]}, which must change nothing"
                self._self_check(kind, found, check, expected)
        found = checks.removed(self._whole)
        if found is not None:
            self._self_check("error", found, checks.removed, "")

    def _check_resume(self) -> None:
        checks = Checks(self._runs, self._reference)
        if any(one.check in ("repeat", "save") for one in self._findings):
            return
        self._checks.append(
            f"a resume after update {max(1, self._runs.steps // 2)} changes nothing"
        )
        found = checks.resume(self._whole)
        if found is not None and not self._is_known(found):
            self._self_check("resume", found, checks.resume, "after a resume")

    def _is_known(self, found: Difference) -> bool:
        """Return whether an error was told already."""
        return found.parting.name == "the run" and any(
            one.difference is not None and one.difference.parting == found.parting
            for one in self._findings
        )

    def _check_jumps(self) -> None:
        if not any(PREDICTOR in spec.claims for spec in self._stack.specs.values()):
            return
        notes = self._runs.of(self._whole, Wish(refuse=True))
        if not notes.jumps:
            self._notes.append("no jump was tried within these updates, so none was refused")
            return
        self._checks.append("a refused jump changes nothing")
        checks = Checks(self._runs, self._reference)
        check = checks.left_by("jump", refuse=True)
        found = check(self._whole)
        if found is not None:
            self._self_check("refused jump", found, check, "after a refused jump")

    def _check_races(self) -> None:
        import sys  # noqa: PLC0415 - only here

        if "simulated_gpu" not in sys.modules:
            return
        self._checks.append("no two streams race for memory of the simulated GPU")
        checks = Checks(self._runs, self._reference)
        found = checks.races(self._whole)
        if found is not None and not self._is_known(found):
            self._self_check("races", found, checks.races, "")

    def _self_check(self, kind: str, found: Difference, check: Any, expected: str) -> None:
        base = self._stack.closed(self._stack.builders)
        predicting = {name for name, spec in self._stack.specs.items() if PREDICTOR in spec.claims}
        if kind == "refused jump":
            base = self._stack.closed(base | predicting)
        self._blame(kind, found, check, expected, base=base, candidates=self._whole - base)

    def _blame(
        self,
        kind: str,
        found: Difference,
        check: Differs,
        expected: str,
        *,
        base: Names,
        candidates: Names,
        detail: Any = None,
    ) -> Names:
        """Find the guilty, note them, and return all of them."""
        order = [name for name in self._stack.specs if name in candidates]
        every = guilty(self._stack, base, order, check)
        for names in every:
            seen = check(base | names) or found
            if detail is not None:
                seen = detail(base | names, seen)
            settings = guilty_settings(self._stack, names, base, check) if names else ()
            own = tuple(name for name in self._stack.specs if name in names)
            self._findings.append(VerifyFinding(kind, own, seen, settings, says(seen, expected)))
        return frozenset(name for names in every for name in names)

    def _measured(self) -> MemoryPeaks | None:
        from .memory import measured  # noqa: PLC0415 - only a whole verification needs it

        found = measured(self._runs, self._whole, self._notes)
        if found is not None and found.is_more:
            self._findings.append(VerifyFinding("memory", (), None, (), f"{found}"))
        return found

    def _verification(self, plain: Watched, memory: MemoryPeaks | None) -> Verification:
        stack = self._stack
        return Verification(
            findings=tuple(self._findings),
            steps=self._runs.steps,
            against="plain PyTorch" if self._other is None else "the other configuration",
            exact=tuple(name for name in stack.specs if name in stack.exact),
            tolerant=tuple(name for name in stack.specs if name in stack.tolerant),
            common=tuple(name for name in stack.specs if name in stack.foundation),
            checks=tuple(self._checks),
            notes=tuple(self._notes),
            memory=memory,
            sliced=self._slice,
            device=plain.device,
            parameters=plain.parameters,
            seconds=time.monotonic() - self._began,
            runs=self._runs.made,
        )


_ARTICLE = {"evaluation": "an evaluation", "save": "a save"}
_DRAWS = (
    "plugins with a tolerance are not compared: the model draws random numbers beside dropout, and "
    "other micro-batches draw others"
)
