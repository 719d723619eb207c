"""Pieces of documents, and their places in samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neaptide_plugins.huggingface_data.packing import alone, packed, pieces_of


def pieces(sizes: list[int], length: int, too_long: Any, counted: Any = None) -> Any:
    ends = np.cumsum(sizes, dtype=np.int64)
    flags = np.ones(sum(sizes), np.bool_) if counted is None else np.asarray(counted, np.bool_)
    return pieces_of(ends, np.arange(len(sizes)), flags, length, too_long)


def spans(found: Any) -> list[tuple[int, int]]:
    return list(zip(found.starts.tolist(), found.stops.tolist(), strict=True))


@pytest.mark.parametrize(
    ("too_long", "expected", "dropped"),
    [
        ("cut", [(0, 3), (3, 7), (14, 18)], {"too short": 1}),
        ("split", [(0, 3), (3, 7), (7, 11), (11, 13), (14, 18)], {"too short": 1}),
        ("drop", [(0, 3), (14, 18)], {"too short": 1, "longer than 4 tokens": 1}),
    ],
)
def test_long_documents_are_cut_split_or_dropped(
    too_long: str, expected: Any, dropped: dict[str, int]
) -> None:
    found = pieces([3, 10, 1, 4], 4, too_long)
    assert expected == spans(found)
    assert dropped == found.dropped


def test_what_has_no_target_is_dropped() -> None:
    #          only the first token   none         the last token
    counted = [True, False, False, *[False] * 2, *[False, False, True]]
    found = pieces([3, 2, 3], 4, "cut", counted)
    assert [(5, 8)] == spans(found)
    assert {"without a token for the loss": 2} == found.dropped
    assert [1] == found.targets.tolist()


def test_a_cut_that_leaves_no_target_is_told() -> None:
    found = pieces([6, 6], 3, "cut", [False] * 5 + [True] + [True] * 6)
    assert [(6, 9)] == spans(found)
    assert {"without a token for the loss": 1} == found.dropped


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60), st.integers(2, 16), st.data())
def test_every_piece_lies_in_one_sample_and_no_sample_is_too_long(
    sizes: list[int], length: int, data: Any
) -> None:
    counted = data.draw(st.lists(st.booleans(), min_size=sum(sizes), max_size=sum(sizes)))
    too_long = data.draw(st.sampled_from(["cut", "split", "drop"]))
    found = pieces(sizes, length, too_long, counted)
    for start, stop in spans(found):
        assert 2 <= stop - start <= length
        assert any(counted[start + 1 : stop])
    wanted = [sum(counted[start + 1 : stop]) for start, stop in spans(found)]
    assert wanted == found.targets.tolist()
    for samples in (packed(found, length), alone(found)):
        rows = [samples.spans(row) for row in range(len(samples))]
        assert sorted(span for row in rows for span in row) == spans(found)
        assert all(row and sum(b - a for a, b in row) <= length for row in rows)


def test_the_fit_is_the_best_that_is_left() -> None:
    samples = packed(pieces([6, 5, 4, 3, 2], 10, "cut"), 10)
    rows = [sorted(b - a for a, b in samples.spans(row)) for row in range(len(samples))]
    assert [[4, 6], [2, 3, 5]] == rows


def test_many_short_documents_leave_little_room() -> None:
    sizes = np.random.default_rng(0).integers(2, 400, 5000).tolist()
    samples = packed(pieces(sizes, 1024, "cut"), 1024)
    assert len(samples) * 1024 < 1.002 * sum(sizes)
