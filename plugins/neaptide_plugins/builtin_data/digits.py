"""Handwritten digits that ship with scikit-learn: 1,797 real 8x8 images (UCI, Alpaydin 1998)."""

from __future__ import annotations

import math
from importlib import import_module
from typing import TYPE_CHECKING

import attrs
import torch
from attrs.validators import ge
from torch import Tensor

from .counter import permutation
from .stream import EndlessBatches

if TYPE_CHECKING:
    from collections.abc import Iterator

BRIGHTEST = 16.0
SPLIT_SEED = 0


@attrs.frozen(kw_only=True, eq=False)
class Digits:
    """Images of digits, float32 `[N, 1, 8, 8]` in [0, 1], and the digits, int64 `[N]`."""

    images: Tensor
    labels: Tensor


def load(validation_share: float = 0.2) -> tuple[Digits, Digits]:
    """Return the images for training and the images for validation. The split is always the same.

    The share `validation_share` of each digit's images is for validation. ModuleNotFoundError if
    scikit-learn is not installed; the extra `neaptide[digits]` installs scikit-learn.
    """
    try:
        datasets = import_module("sklearn.datasets")
    except ModuleNotFoundError as error:
        msg = 'builtin:digits needs scikit-learn: pip install "neaptide[digits]"'
        raise ModuleNotFoundError(msg, name=error.name) from error
    raw = datasets.load_digits()
    images = torch.as_tensor(raw.images, dtype=torch.float32).unsqueeze(1) / BRIGHTEST
    labels = torch.as_tensor(raw.target, dtype=torch.int64)
    training, validation = stratified_split(labels, validation_share)
    return (
        Digits(images=images[training], labels=labels[training]),
        Digits(images=images[validation], labels=labels[validation]),
    )


def stratified_split(labels: Tensor, validation_share: float) -> tuple[list[int], list[int]]:
    """Return two sorted lists: the indices of training examples and of validation examples.

    A class of `n` examples has `round(n * validation_share)` validation examples. A fixed seed
    selects these examples. ValueError if a part would be empty.
    """
    validation: set[int] = set()
    for label in sorted(set(labels.tolist())):
        members = (labels == label).nonzero().flatten().tolist()
        order = permutation(SPLIT_SEED, label, len(members))
        held_out = round(len(members) * validation_share)
        validation.update(members[place] for place in order[:held_out])
    training = [number for number in range(len(labels)) if number not in validation]
    if not training or not validation:
        msg = (
            f"holding out {validation_share:g} of {len(labels)} digits leaves {len(training)} for "
            f"training and {len(validation)} for validation: change 'validation_share'"
        )
        raise ValueError(msg)
    return training, sorted(validation)


@attrs.define(eq=False)
class DigitBatches(EndlessBatches):
    """Endless shuffled batches. The seed and the epoch's number determine the order of an epoch.

    Each batch is `{"x": float32 [batch_size, 1, 8, 8], "y": int64 [batch_size]}`. A batch may span
    two epochs, so every batch is full and every image is used equally often.
    """

    data: Digits
    batch_size: int = attrs.field(validator=ge(1))
    seed: int

    def batch(self, index: int) -> dict[str, Tensor]:
        """Return batch number `index`, independent of earlier calls."""
        first = index * self.batch_size
        numbers = [self._image_at(first + place) for place in range(self.batch_size)]
        return {"x": self.data.images[numbers], "y": self.data.labels[numbers]}

    def _image_at(self, position: int) -> int:
        epoch, place = divmod(position, len(self.data.labels))
        return permutation(self.seed, epoch, len(self.data.labels))[place]


@attrs.define(eq=False)
class EvalDigits:
    """Batches of the first `count` images, or of all images if there are fewer than `count`.

    Each batch is `{"x": float32 [<= batch_size, 1, 8, 8], "y": int64 [<= batch_size]}`. Every
    iteration yields the same batches.
    """

    data: Digits
    batch_size: int = attrs.field(validator=ge(1))
    count: int = attrs.field(validator=ge(1))

    def _count(self) -> int:
        return min(self.count, len(self.data.labels))

    def __len__(self) -> int:
        """Return the number of batches."""
        return math.ceil(self._count() / self.batch_size)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Yield the batches in order."""
        for first in range(0, self._count(), self.batch_size):
            chosen = slice(first, min(first + self.batch_size, self._count()))
            yield {"x": self.data.images[chosen], "y": self.data.labels[chosen]}
