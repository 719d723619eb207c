"""A block that looks across its batch is not split."""

from __future__ import annotations

import pytest
from streamed import (
    refusal,
)
from zoo_blocks import returned, stacked

PIECES = {
    "a sum over the batch": stacked(lambda b, x: x + b.linear(x) - b.linear(x).mean(0)),
    "a scalar": returned(lambda b, x: (x, b.linear(x).mean()), lambda pair: pair[0] + pair[1]),
    "turned": returned(lambda b, x: b.linear(x).transpose(0, 1), lambda y: y.transpose(0, 1)),
}


@pytest.mark.parametrize("name", PIECES)
def test_what_looks_across_the_batch_is_refused_in_pieces(name: str) -> None:
    line = refusal(PIECES[name], micro_batches=2)
    assert "block 'blocks.0'" in line
    assert "set micro_batches = 1" in line
