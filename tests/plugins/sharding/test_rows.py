"""The rows of each process, together, are the tensor; the state of rows is cut alike."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import DEVICE

from neaptide_plugins.sharding.rows import RowShare, is_part, part_of_entry


@given(length=st.integers(1, 30), size=st.integers(1, 9), width=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_the_rows_of_all_processes_are_those_of_torch(length: int, size: int, width: int) -> None:
    whole = torch.arange(float(length * width)).reshape(length, width).to(DEVICE)
    every = [RowShare((length, width), rank, size) for rank in range(size)]
    parts = [rows.own(whole) for rows in every]
    assert torch.equal(whole, torch.cat(parts))
    chunks = torch.chunk(whole, size)
    assert all(torch.equal(one, other) for one, other in zip(parts, chunks, strict=False))
    for rows, part in zip(every, parts, strict=True):
        assert rows.own_shape == tuple(part.shape)
        padded = rows.padded(part)
        assert padded.shape[0] == rows.chunk
        assert torch.equal(part, padded[: len(part)])
        assert not padded[len(part) :].any()


@pytest.mark.parametrize("size", [2, 4])
def test_only_what_has_the_shape_of_the_parameter_is_cut(size: int) -> None:
    rows = RowShare((5, 2), 1, size)
    moment, count = torch.arange(10.0).reshape(5, 2).to(DEVICE), torch.ones((), device=DEVICE)
    own = part_of_entry(moment, rows)
    assert torch.equal(own, rows.own(moment))
    assert is_part(own, rows)
    assert not is_part(count, rows)
    assert part_of_entry(count, rows) is count
    assert part_of_entry(3, rows) == 3
