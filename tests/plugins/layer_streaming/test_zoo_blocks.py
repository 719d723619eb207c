"""Blocks that take, return, change and depend on odd things: to the bit as resident ones."""

from __future__ import annotations

import pytest
from streamed import WAYS, assert_close, assert_same, train
from zoo_blocks import BLOCKS


@pytest.mark.parametrize("name", BLOCKS)
def test_an_odd_block_trains_to_the_bit(name: str) -> None:
    resident = train(BLOCKS[name], None)
    for way in WAYS.values():
        assert_same(resident, train(BLOCKS[name], way))


REFUSED_IN_PIECES = {
    "its own weight": "cannot be joined",
    "an object in place": "stores tensors in an argument",
    "a tensor to change": "changes an input in place",
    "count in buffers": "returns something else",
    "remember in attributes": "returns something else",
    "python's rng": "returns something else",
    "torch's rng": "returns something else",
    "dropout in place": "returns something else",
}
ROUNDED = {"autocast": 0.02, "bfloat16": 0.02, "mixed widths": 0.02}
"""Relative to the largest gradient, where products are rounded to bfloat16."""


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("name", BLOCKS)
def test_an_odd_block_in_pieces_is_right_within_rounding_or_refused(name: str) -> None:
    pieces = {"micro_batches": 3}
    if name in REFUSED_IN_PIECES:
        with pytest.raises(RuntimeError, match=REFUSED_IN_PIECES[name]) as caught:
            train(BLOCKS[name], pieces, steps=1)
        assert "block 'blocks.0'" in str(caught.value)
        assert "set micro_batches = 1" in str(caught.value)
    else:
        resident = train(BLOCKS[name], None, steps=1)
        assert_close(resident, train(BLOCKS[name], pieces, steps=1), ROUNDED.get(name, 1e-6))
