"""Decides which tokens make a sample: pieces of documents, and the pieces that share a sample."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import attrs
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .config import TooLong

_LEAST = 2
"""Tokens without which a piece has no target."""


@attrs.frozen(eq=False)
class Pieces:
    """Parts of documents, each of at most as many tokens as a sample has."""

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    targets: NDArray[np.int64]
    """Number of tokens that count for the loss."""
    dropped: dict[str, int]
    """Number of documents that gave no piece, by the reason."""
    cut: int = 0
    """Number of documents whose end is left out."""

    def __len__(self) -> int:
        return len(self.starts)


@attrs.frozen(eq=False)
class Samples:
    """Samples of pieces: sample i has the pieces `order[bounds[i]:bounds[i + 1]]`."""

    pieces: Pieces
    order: NDArray[np.int64]
    bounds: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def spans(self, sample: int) -> list[tuple[int, int]]:
        """Return the first token and the end of each piece of a sample."""
        chosen = self.order[self.bounds[sample] : self.bounds[sample + 1]]
        starts, stops = self.pieces.starts[chosen], self.pieces.stops[chosen]
        return list(zip(starts.tolist(), stops.tolist(), strict=True))


def pieces_of(
    ends: NDArray[np.int64],
    chosen: NDArray[np.int64],
    counted: NDArray[np.bool_],
    length: int,
    too_long: TooLong,
) -> Pieces:
    """Return the pieces of the `chosen` documents that have a target.

    Args:
        ends: the end of each document in the stream of tokens.
        chosen: numbers of documents, ascending.
        counted: for each token whether it counts for the loss.
        length: largest number of tokens of a piece.
        too_long: what becomes of longer documents.
    """
    begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[chosen]
    sizes = ends[chosen] - begins
    dropped, cut = {"too short": int((sizes < _LEAST).sum())}, 0
    if too_long == "drop":
        dropped[f"longer than {length:,} tokens"] = int((sizes > length).sum())
        parts = np.where(sizes > length, 0, 1)
    elif too_long == "cut":
        cut = int((sizes > length).sum())
        parts, sizes = np.ones_like(sizes), np.minimum(sizes, length)
    else:
        parts = -(-sizes // length)
    parts = np.where(sizes < _LEAST, 0, parts)
    documents = np.repeat(np.arange(len(chosen)), parts)
    place = np.arange(len(documents)) - np.repeat(np.cumsum(parts) - parts, parts)
    starts = begins[documents] + place * length
    stops = np.minimum(starts + length, (begins + sizes)[documents])
    targets = targets_of(counted, starts, stops)
    useful = targets > 0
    gave = np.bincount(documents[useful], minlength=len(chosen)) > 0
    dropped["without a token for the loss"] = int(((parts > 0) & ~gave).sum())
    told = {why: count for why, count in dropped.items() if count}
    return Pieces(starts[useful], stops[useful], targets[useful], told, cut)


def targets_of(
    counted: NDArray[np.bool_], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the number of targets of each piece. The first token of a piece is no target."""
    spans = zip((starts + 1).tolist(), stops.tolist(), strict=True)
    return np.asarray([np.count_nonzero(counted[first:end]) for first, end in spans], np.int64)


def alone(pieces: Pieces) -> Samples:
    """Return a sample for each piece."""
    return Samples(pieces, np.arange(len(pieces)), np.arange(len(pieces) + 1))


def packed(pieces: Pieces, length: int) -> Samples:
    """Put pieces into samples of at most `length` tokens, the longest pieces first.

    Each piece goes where the least room is left (best fit decreasing). Pieces of the same length
    keep their order, so the samples depend on nothing but the pieces.
    """
    sizes = pieces.stops - pieces.starts
    by_room: dict[int, list[int]] = defaultdict(list)
    rooms = 0  # bit r is set if a sample has room for r more tokens
    sample_of = np.empty(len(pieces), np.int64)
    samples = 0
    longest_first = np.argsort(-sizes, kind="stable")
    for piece, size in zip(longest_first.tolist(), sizes[longest_first].tolist(), strict=True):
        fitting = rooms >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            sample = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
        else:
            room, sample, samples = length, samples, samples + 1
        sample_of[piece] = sample
        if room > size:
            by_room[room - size].append(sample)
            rooms |= 1 << (room - size)
    order = np.argsort(sample_of, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(np.bincount(sample_of, minlength=samples))])
    return Samples(pieces, order, bounds.astype(np.int64))
