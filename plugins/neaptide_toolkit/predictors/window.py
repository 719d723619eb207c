"""A window of sampled weights. Each of its rows is a weighted sum of the samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.renamed import missing_in
from neaptide.text import one_line
from neaptide_toolkit.saved_form import counter

from .held_tensors import HeldTensor, held_bytes, pieces
from .sampling import add_samples, all_finite

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from neaptide import Span

    from .held_tensors import Storage
    from .settings import State

    Coefficients = Callable[[int, int], Sequence[float]]


@attrs.frozen
class WindowPlan:
    """A window's schedule: `samples` samples, one every `every` updates."""

    samples: int
    every: int

    __repr__ = one_line


@attrs.define(eq=False)
class Window:
    """For each weight: `rows[j] = sum_i coefficients(i, samples)[j] * w_i`, where i starts at 0.

    If the rows are stored in bfloat16 or int8, `w_i - reference` replaces `w_i`. The reference is
    the first sample, rounded to int8. The differences are small, so they need few digits. In these
    formats the coefficients of each row must sum to 0 or 1. If they sum to 0, the reference
    cancels. If they sum to 1, the row is a weighted mean of the samples, minus the reference.
    """

    plan: WindowPlan
    coefficients: Coefficients
    rows: dict[str, list[HeldTensor]]
    references: dict[str, HeldTensor]
    """The first samples, in int8; empty in float32."""
    began: int
    """Number of updates before the window."""
    position: int = 0
    """Number of updates in the window so far."""
    counts: dict[str, int] = attrs.field(factory=dict)
    """Number of samples taken of each weight."""
    _finite: dict[torch.device, torch.Tensor] = attrs.field(factory=dict)

    __repr__ = one_line

    @classmethod
    def open(
        cls,
        plan: WindowPlan,
        coefficients: Coefficients,
        spans: Iterable[Span],
        storage: Storage,
        state: State,
        *,
        began: int,
        before: Window | None = None,
    ) -> Window:
        """Start a window over `spans`; reuse the memory of `before` where the size fits."""
        width = len(coefficients(0, plan.samples))
        rows: dict[str, list[HeldTensor]] = {}
        references: dict[str, HeldTensor] = {}
        for span in spans:
            old = before.rows.get(span.name, []) if before else []
            fits = len(old) == width and all(held.fits(span.shape, state) for held in old)
            rows[span.name] = (
                [held.clear() for held in old]
                if fits
                else [storage.zeros(span.shape, state) for _ in range(width)]
            )
            if state != "float32":
                kept = before.references.get(span.name) if before else None
                fits = kept is not None and kept.fits(span.shape, "int8")
                references[span.name] = (
                    kept.clear() if kept and fits else storage.zeros(span.shape, "int8")
                )
        return cls(plan, coefficients, rows, references, began)

    @property
    def length(self) -> int:
        """Length of the full window in updates."""
        return self.plan.samples * self.plan.every

    @property
    def full(self) -> bool:
        """True if all samples are taken."""
        return self.position >= self.length

    @property
    def samples_next(self) -> bool:
        """True if the next update is to be sampled."""
        return not self.full and (self.position + 1) % self.plan.every == 0

    @property
    def touched(self) -> bool:
        """True if a weight has been sampled in the current update."""
        return bool(self._finite)

    def add(self, name: str, weight: torch.Tensor) -> None:
        """Add the sample of one weight after its update, before `advance`.

        If an earlier sample of a weight is missing, the weight is left out until the next window.
        """
        self.add_all([name], [weight])

    def add_all(self, names: Collection[str], weights: Collection[torch.Tensor]) -> None:
        """Call `add` for each weight, with the same bits. The weights have one dtype and device."""
        index = (self.position + 1) // self.plan.every - 1
        counts, known = self.counts, self.rows
        taken = dict(zip(names, weights, strict=True))
        if not (index and {index} == {*map(counts.get, names)} and known.keys() >= taken.keys()):
            taken = {
                name: weight
                for name, weight in taken.items()
                if name in known and counts.get(name, 0) == index and weight.numel()
            }
        if taken:
            counts.update(dict.fromkeys(taken, index + 1))
            finite = all_finite(list(taken.values()))
            before = self._finite.get(finite.device)
            self._finite[finite.device] = finite if before is None else before & finite
            shares = self.coefficients(index, self.plan.samples)
            add_samples(taken, known, self.references, shares, self.began, index)

    def advance(self) -> bool:
        """Count one update; return whether its samples are finite."""
        self.position += 1
        finite = all(bool(flag) for flag in self._finite.values())
        self._finite.clear()
        return finite

    def complete(self, name: str) -> bool:
        """Return whether every sample of a weight has been added."""
        return self.counts.get(name, 0) == self.plan.samples

    def combined(self, name: str, gains: Sequence[float]) -> torch.Tensor | None:
        """Return `sum_j gains[j] * rows[j]`, in float32; None if samples are missing.

        The result has the weight's shape. If there are several rows and the gains sum to zero, the
        first row is subtracted from the other rows before the sum. So large values that are common
        to all rows cancel before float32 rounds the sum.
        """
        if not self.complete(name):
            return None
        first, *others = self.rows[name]
        device = first.storage.proposes_on
        base = first.whole(device)
        if others and abs(sum(gains)) <= _ROUNDING * max(map(abs, gains)):
            total = torch.zeros_like(base)
            for held, gain in zip(others, gains[1:], strict=True):
                total.add_(held.whole(device) - base, alpha=gain)
            return total
        total = base * gains[0]
        for held, gain in zip(others, gains[1:], strict=True):
            total.add_(held.whole(device), alpha=gain)
        return total

    def level(self, name: str) -> torch.Tensor | None:
        """Return the first row plus the reference, in float32; None if samples are missing."""
        if not self.complete(name):
            return None
        row, reference = self.rows[name][0], self.references.get(name)
        device = row.storage.proposes_on
        found = row.whole(device)
        return found if reference is None else found + reference.whole(device)

    def gram(self) -> torch.Tensor:
        """Return `[rows - 1, rows - 1]` inner products of the differences between adjacent rows.

        The products are summed over all complete weights, in float64 on the host, in the order of
        sorted names. So the result does not depend on the order of the weights in the model.
        """
        count = max((len(rows) for rows in self.rows.values()), default=1) - 1
        total = torch.zeros(count, count, dtype=torch.float64, device="cpu")
        for name in sorted(filter(self.complete, self.rows)):
            rows = self.rows[name]
            device = rows[0].storage.proposes_on
            for start, stop in pieces(rows[0].values.numel()):
                read = [held.read(start, stop, device) for held in rows]
                steps = torch.stack(read).to(torch.float64).diff(dim=0)
                total += (steps @ steps.T).cpu()
        return total

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "samples": self.plan.samples,
            "every": self.plan.every,
            "began": self.began,
            "position": self.position,
            "counts": dict(self.counts),
            "rows": {
                name: [held.state_dict() for held in rows] for name, rows in self.rows.items()
            },
            "references": {name: held.state_dict() for name, held in self.references.items()},
        }

    @classmethod
    def load(cls, saved: Mapping[str, Any], coefficients: Coefficients, storage: Storage) -> Window:
        """Return the window saved by `state_dict`. Raises ValueError if it is none."""
        return cls(
            WindowPlan(counter(saved, "samples"), counter(saved, "every")),
            coefficients,
            {name: [storage.load(held) for held in rows] for name, rows in saved["rows"].items()},
            {name: storage.load(held) for name, held in saved["references"].items()},
            counter(saved, "began"),
            counter(saved, "position"),
            {name: counter(saved["counts"], name) for name in saved["counts"]},
        )


_ROUNDING = 1e-9
"""A sum of gains counts as zero if it is at most this share of the largest gain."""


def window_bytes(shape: tuple[int, ...], state: State, width: int) -> int:
    """Return the bytes that a window of `width` rows holds for a weight."""
    reference = 0 if state == "float32" else held_bytes(shape, "int8")
    return width * held_bytes(shape, state) + reference


if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = missing_in(__name__)
