"""Blocks that take, return, change and depend on odd things: to the bit as resident ones."""

from __future__ import annotations

import pytest
from streamed import WAYS, assert_same, train
from zoo_blocks import BLOCKS


@pytest.mark.parametrize("name", BLOCKS)
def test_an_odd_block_trains_to_the_bit(name: str) -> None:
    resident = train(BLOCKS[name], None)
    for way in WAYS.values():
        assert_same(resident, train(BLOCKS[name], way))
