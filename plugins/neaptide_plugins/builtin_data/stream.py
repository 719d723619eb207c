"""Endless batches with a saved position: a resumed run continues with the next batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from attrs.validators import ge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


@attrs.define(eq=False)
class EndlessBatches(ABC):
    """Batches 0, 1, 2, … without end; `index` is the number of the next batch."""

    leaves_weights: ClassVar[bool] = True
    index: int = attrs.field(default=0, validator=ge(0), kw_only=True)

    @abstractmethod
    def batch(self, index: int) -> dict[str, Tensor]:
        """Return batch number `index`, independent of earlier calls."""

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Yield the batches from number `index` on; add 1 to `index` before each batch."""
        while True:
            self.index += 1
            yield self.batch(self.index - 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of the next batch."""
        return {"index": self.index}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the number of the next batch to the value that `state_dict` returned."""
        self.index = state["index"]
