"""The line search for the proposal of a window: one batch per update after the window is full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from .line_search import LineSearch, along
from .window import Window, window_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from neaptide.api.parameters import ParameterStore

    from .held_tensors import Storage
    from .settings import State


@attrs.define(eq=False)
class SpreadSearch:
    """Measures the best length of a jump (the proposed change of the weights) on several batches.

    The search starts at the mean weights of the window's last quarter.
    """

    batches: int
    store: ParameterStore
    probe: Callable[[Any], float]
    level: Window | None = None
    search: LineSearch = attrs.field(factory=LineSearch)

    def open(self, window: Window, storage: Storage, state: State) -> None:
        """Start a new search for `window`; reuse the last search's memory where the size fits."""
        sampled = [span for span in self.store.spans() if span.name in window.rows]
        self.level = Window.open(
            window.plan,
            last_quarter,
            sampled,
            storage,
            state,
            began=window.began,
            before=self.level,
        )
        self.search = LineSearch()

    def add(self, names: Sequence[str], weights: Sequence[torch.Tensor]) -> None:
        """Add the window's samples of weights to the mean."""
        if self.level is not None:
            self.level.add_all(names, weights)

    def advance(self) -> None:
        """Count one update of the window."""
        if self.level is not None:
            self.level.advance()

    @property
    def pending(self) -> bool:
        """True if more batches must be measured."""
        return self.search.batches < self.batches

    def measure(self, window: Window, gains: Sequence[float] | None, batch: Any) -> None:
        """Measure the losses on a batch before the training step; if `gains` is None, all are 0."""
        if gains is None or self.level is None:
            self.search.add([0.0] * len(self.search.sums))
            return
        losses = along(
            self.store,
            self.level.level,
            lambda name: window.combined(name, gains),
            lambda: self.probe(batch),
        )
        self.search.add(losses)

    @property
    def factor(self) -> float:
        """The factor by which to multiply the proposal."""
        return self.search.best

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        level = None if self.level is None else self.level.state_dict()
        return {"level": level, "search": self.search.state_dict()}

    def load_state_dict(self, saved: Mapping[str, Any], storage: Storage) -> None:
        """Restore the result of `state_dict`."""
        level = saved["level"]
        self.level = None if level is None else Window.load(level, last_quarter, storage)
        self.search.load_state_dict(saved["search"])


def searching_bytes(shapes: Sequence[tuple[int, ...]], state: State) -> int:
    """Return the bytes of the mean weights that a search stores for weights of these shapes."""
    return sum(window_bytes(shape, state, 1) for shape in shapes)


def last_quarter(index: int, samples: int) -> tuple[float]:
    """Return a sample's coefficient in the mean of a window's last quarter."""
    count = max(1, samples // 4)
    return (1.0 / count if index >= samples - count else 0.0,)
