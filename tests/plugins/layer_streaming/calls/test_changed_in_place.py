"""What is changed in place, by a block or between its forward and its backward."""

from __future__ import annotations

import pytest
import torch
from streamed import (
    DEVICE,
    refusal,
    train,
)
from torch import nn
from zoo_blocks import BLOCKS, given, odd
from zoo_layers import WIDTH, Stack


def test_a_parameter_that_a_block_changes_is_refused() -> None:
    line = refusal(
        given(
            lambda block, x: block(x.detach().abs().long().sum(-1) % 11) + x,
            lambda block, tokens: block.table(tokens) + block.linear(block.table(tokens)),
            table=lambda: nn.Embedding(11, WIDTH, max_norm=0.5),
        )
    )
    assert "block 'blocks.0' changes a parameter of shape [11, 8]" in line
    assert "exclude it" in line


@pytest.mark.parametrize("where", [False, True])
def test_an_input_changed_in_place_after_the_block(where: bool) -> None:  # noqa: FBT001 - pytest's
    class Changing(Stack):
        def __init__(self) -> None:
            super().__init__(odd(lambda block, x: block.linear(x * 2)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            for block in self.blocks:
                y = block(x)
                if DEVICE.type != "cpu":
                    torch.accelerator.synchronize()  # the copy to RAM must not read half of it
                x += y
            return self.head(x).square().mean()

    with pytest.raises(RuntimeError, match="changed in place"):
        train(Changing, {"inputs_on_host": where})


def test_an_input_changed_in_place_in_pieces_is_right_or_refused() -> None:
    line = refusal(BLOCKS["a tensor to change"], micro_batches=2)
    assert "block 'blocks.0'" in line
    assert "micro_batches = 1" in line
