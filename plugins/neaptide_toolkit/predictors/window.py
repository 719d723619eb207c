"""A window of sampled weights: rows that are sums of the samples with given coefficients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.renamed import missing_in
from neaptide.text import one_line

from .held_tensors import HeldTensor, held_bytes, pieces, seed_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from neaptide import Span

    from .held_tensors import Storage
    from .settings import State

    Coefficients = Callable[[int, int], Sequence[float]]


@attrs.frozen
class WindowPlan:
    """When a window takes its samples: `samples` of them, one every `every` updates."""

    samples: int
    every: int

    __repr__ = one_line


@attrs.define(eq=False)
class Window:
    """`rows[j] = sum_i coefficients(i, samples)[j] * w_i`, i from 0, of every weight.

    Below float32 the coefficients of each row are to add up to zero, or be those of snapshots: what
    is summed up is `w_i` less a reference, the first sample in int8. It drops out of any sum of
    weights whose coefficients add up to zero, and what is left is small enough for few digits.
    """

    plan: WindowPlan
    coefficients: Coefficients
    rows: dict[str, list[HeldTensor]]
    references: dict[str, HeldTensor]
    """Empty in float32."""
    began: int
    """Updates made before it."""
    position: int = 0
    """Updates seen so far."""
    counts: dict[str, int] = attrs.field(factory=dict)
    """Samples taken of each weight."""
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
        """Begin a window over `spans`, in the memory of the window `before` where that fits."""
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
        """Updates that it spans."""
        return self.plan.samples * self.plan.every

    @property
    def full(self) -> bool:
        """Whether all samples are in."""
        return self.position >= self.length

    @property
    def samples_next(self) -> bool:
        """Whether the coming update is one to sample."""
        return not self.full and (self.position + 1) % self.plan.every == 0

    @property
    def touched(self) -> bool:
        """Whether the update in progress was sampled."""
        return bool(self._finite)

    def add(self, name: str, weight: torch.Tensor) -> None:
        """Take a sample of one weight after the coming update, before `advance`.

        A weight that was not there for every sample before is left out until the next window.
        """
        index = (self.position + 1) // self.plan.every - 1
        rows = self.rows.get(name)
        if rows is None or self.counts.get(name, 0) != index or not weight.numel():
            return
        self.counts[name] = index + 1
        self._note_finite(weight)
        shares = self.coefficients(index, self.plan.samples)
        reference, flat = self.references.get(name), weight.reshape(-1)
        work, when = rows[0].storage.works_on(weight), self.began + index
        for start, stop in pieces(len(flat)):
            sample = flat[start:stop].to(work, torch.float32)
            if reference is not None:
                if index == 0:
                    reference.write(start, sample, None)
                sample = sample - reference.read(start, stop, work)
            for row, (held, share) in enumerate(zip(rows, shares, strict=True)):
                if share:
                    held.add(start, sample, share, seed_of(when, name, row, start))

    def _note_finite(self, weight: torch.Tensor) -> None:
        # Both extremes are NaN where one element is; nothing is read from the device here.
        finite = torch.stack(torch.aminmax(weight)).isfinite().all()
        before = self._finite.get(weight.device)
        self._finite[weight.device] = finite if before is None else before & finite

    def advance(self) -> bool:
        """Count one update; return whether what was sampled of it is finite."""
        self.position += 1
        finite = all(bool(flag) for flag in self._finite.values())
        self._finite.clear()
        return finite

    def complete(self, name: str) -> bool:
        """Return whether every sample of a weight is in."""
        return self.counts.get(name, 0) == self.plan.samples

    def combined(self, name: str, gains: Sequence[float]) -> torch.Tensor | None:
        """Return `sum_j gains[j] * rows[j]`, float32 in the weight's shape; None if not complete.

        Several rows are taken less the first one where the gains add up to zero: snapshots cancel,
        and float32 keeps the digits of what they differ by.
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
        """Return the first row as a weight, float32, its reference added; None if not complete."""
        if not self.complete(name):
            return None
        row, reference = self.rows[name][0], self.references.get(name)
        device = row.storage.proposes_on
        found = row.whole(device)
        return found if reference is None else found + reference.whole(device)

    def gram(self) -> torch.Tensor:
        """Return `[rows - 1, rows - 1]` inner products of the steps from a row to the next.

        Over all complete weights, float64 on the host; by sorted names, so that the order in which
        weights are held changes no bit.
        """
        count = max((len(rows) for rows in self.rows.values()), default=1) - 1
        total = torch.zeros(count, count, dtype=torch.float64)
        for name in sorted(filter(self.complete, self.rows)):
            rows = self.rows[name]
            device = rows[0].storage.proposes_on
            for start, stop in pieces(rows[0].values.numel()):
                read = [held.read(start, stop, device) for held in rows]
                steps = torch.stack(read).to(torch.float64).diff(dim=0)
                total += (steps @ steps.T).cpu()
        return total

    def state_dict(self) -> dict[str, Any]:
        """Return it for a checkpoint."""
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
        """Return what `state_dict` returned."""
        return cls(
            WindowPlan(saved["samples"], saved["every"]),
            coefficients,
            {name: [storage.load(held) for held in rows] for name, rows in saved["rows"].items()},
            {name: storage.load(held) for name, held in saved["references"].items()},
            saved["began"],
            saved["position"],
            dict(saved["counts"]),
        )


_ROUNDING = 1e-9
"""Share of the largest gain up to which a sum of gains is zero."""


def window_bytes(shape: tuple[int, ...], state: State, width: int) -> int:
    """Return the bytes a window of `width` rows holds of a weight."""
    reference = 0 if state == "float32" else held_bytes(shape, "int8")
    return width * held_bytes(shape, state) + reference


if not TYPE_CHECKING:  # where it would hide what is missing
    __getattr__ = missing_in(__name__)
