"""Where a call has read its tensors is found by the ways of the forward, or by a search."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from support import DEVICE

from neaptide_plugins.layer_streaming.calls.reads import edges_of, readers_of, reads_of

if TYPE_CHECKING:
    from collections.abc import Callable

Graph = tuple[list[torch.Tensor], list[torch.Tensor]]


def made(block: Callable[..., tuple[torch.Tensor, ...]]) -> Graph:
    """Return inputs of a block, one of which is not trained, and its outputs."""
    inputs = [
        torch.ones(2, 2, requires_grad=trained, device=DEVICE) for trained in (True, False, True)
    ]
    return inputs, list(block(*inputs))


def residual(
    x: torch.Tensor, mask: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hidden = x + (x * mask).exp().relu() @ y
    return hidden + torch.cat([hidden, x]).chunk(2)[1], y * y, y


def test_ways_lead_to_what_a_search_finds() -> None:
    inputs, outputs = made(residual)
    reads = reads_of(edges_of(inputs), outputs, 11)
    assert reads.most == 4  # `y` is returned, too
    again, outputs = made(residual)
    edges = edges_of(again)
    followed = reads.followed(edges, outputs, 11)
    assert followed is not None
    expected = readers_of(edges, outputs)
    assert [3, 0, 3] == [len(readers) for readers in expected]
    assert [set(readers) for readers in expected] == [set(readers) for readers in followed]


def test_ways_that_lead_elsewhere_are_not_followed() -> None:
    inputs, outputs = made(residual)
    reads = reads_of(edges_of(inputs), outputs, 11)
    assert reads.followed(edges_of(inputs), outputs, 12) is None
    for block in (
        lambda x, mask, y: (x * mask + y, y * y, y),
        lambda x, mask, y: (x.sin(), y * y, y),
        lambda x, mask, y: (y, y, y),
    ):
        others, outputs = made(block)
        assert reads.followed(edges_of(others), outputs, 11) is None
