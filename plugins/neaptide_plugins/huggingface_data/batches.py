"""Batches of samples: for training in epochs with a saved position, and for validation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import numpy as np
import torch

from neaptide.targets import IGNORED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from .packing import Samples

_MULTIPLE = 8
"""Samples that are not packed are padded to a multiple of this number of tokens."""


@attrs.frozen(eq=False)
class SampleSource:
    """The tokens of all documents, and the samples that are made of them."""

    tokens: NDArray[np.int32]
    counted: NDArray[np.bool_]
    samples: Samples
    length: int
    pack: bool
    filler: int
    """The token after the last document of a sample. It counts for nothing."""

    def batch(self, chosen: list[int]) -> dict[str, Tensor]:
        """Return a batch of samples, int64 `[number of samples, tokens]`.

        Packed samples have `position_ids`, which begin again at each document; this is how models
        of transformers know the documents. Others have an `attention_mask`.
        """
        spans = [self.samples.spans(sample) for sample in chosen]
        width = self.length
        if not self.pack:
            longest = max(stop - start for ((start, stop),) in spans)
            width = min(self.length, _MULTIPLE * math.ceil(longest / _MULTIPLE))
        shape = (len(chosen), width)
        ids = np.full(shape, self.filler, np.int64)
        labels = np.full(shape, IGNORED, np.int64)
        positions = np.zeros(shape, np.int64)
        real = np.zeros(shape, np.int64)
        for row, parts in enumerate(spans):
            at = 0
            for start, stop in parts:
                end = at + stop - start
                ids[row, at:end] = self.tokens[start:stop]
                labels[row, at:end] = np.where(self.counted[start:stop], ids[row, at:end], IGNORED)
                labels[row, at] = IGNORED  # what is before it belongs to another document
                positions[row, at:end] = np.arange(end - at)
                at = end
            real[row, :at] = 1
            positions[row, at:] = np.arange(width - at)
        batch = {"input_ids": ids, "labels": labels}
        batch |= {"position_ids": positions} if self.pack else {"attention_mask": real}
        return {name: torch.from_numpy(values) for name, values in batch.items()}


def shuffled(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the numbers below `count` in an order that seed and epoch determine."""
    # The raw numbers of a bit generator are the same in every release of numpy.
    drawn = np.random.PCG64(np.random.SeedSequence([seed % 2**64, epoch])).random_raw(count)
    return np.argsort(drawn, kind="stable")


@attrs.define(eq=False)
class EpochBatches:
    """The batches of one epoch after another: an iteration ends where an epoch ends.

    The last batch of an epoch has the samples that are left. `state_dict` is the position.
    """

    leaves_weights: ClassVar[bool] = True
    source: SampleSource
    batch_size: int
    seed: int
    shuffle: bool
    fingerprint: str
    """Tells data apart: a position is one in these data."""
    epoch: int = attrs.field(default=0, init=False)
    index: int = attrs.field(default=0, init=False)
    """Number of the next batch in the epoch."""

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return math.ceil(len(self.source.samples) / self.batch_size)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Yield the rest of the epoch; move on before each batch."""
        epoch, count = self.epoch, len(self.source.samples)
        order = shuffled(count, self.seed, epoch) if self.shuffle else np.arange(count)
        while self.epoch == epoch:
            first = self.index * self.batch_size
            chosen = order[first : first + self.batch_size].tolist()
            self.index += 1
            if self.index == len(self):
                self.epoch, self.index = epoch + 1, 0
            yield self.source.batch(chosen)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that was taken."""
        return {"epoch": self.epoch, "index": self.index, "data": self.fingerprint}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a position that `state_dict` returned; ValueError if it is one in other data."""
        if state["data"] != self.fingerprint:
            msg = "the position is one in other files, with another tokenizer or other options"
            raise ValueError(msg)
        if not 0 <= state["index"] < len(self) or state["epoch"] < 0:
            msg = f"there is no batch {state['index']} in an epoch of {len(self)}"
            raise ValueError(msg)
        self.epoch, self.index = state["epoch"], state["index"]


@attrs.define(eq=False)
class FixedBatches:
    """The first `most` batches of the samples in a random order that is always the same."""

    source: SampleSource
    batch_size: int
    most: int

    def __len__(self) -> int:
        """Return the number of batches."""
        return min(self.most, math.ceil(len(self.source.samples) / self.batch_size))

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Yield the batches."""
        order = shuffled(len(self.source.samples), 0, 0)
        for index in range(len(self)):
            first = index * self.batch_size
            yield self.source.batch(order[first : first + self.batch_size].tolist())
