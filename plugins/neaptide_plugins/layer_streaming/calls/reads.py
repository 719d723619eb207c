"""Finds where a block reads a tensor. Each read is a term of the tensor's gradient.

Autograd adds the terms of a tensor one by one, in the order of the graph. If the terms of one
block were added up first, and then added to the terms of other readers, the sum would have other
bits. So the node that stands for a block returns the terms one by one, too.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import get_gradient_edge

from neaptide.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.autograd.graph import Node

    from ..weights.block import Block

    Edge = tuple[Node, int]
    Weight = tuple[Block, int]

FIRST = 32
"""The reads of one tensor for which there is room in the first call of a block."""


def edges_of(tensors: Sequence[torch.Tensor]) -> list[Edge | None]:
    """Return where the gradient of each tensor is added; None for a tensor that has none.

    A change in place moves a tensor's edge, so the edges are taken before a block runs.
    """
    found: list[Edge | None] = []
    for one in tensors:
        if not one.requires_grad:
            found.append(None)
        elif (node := one.grad_fn) is not None:  # `get_gradient_edge` makes a further node
            found.append((node, one.output_nr))
        else:
            with torch.enable_grad():
                edge = get_gradient_edge(one)
            found.append((edge.node, edge.output_nr))
    return found


def readers_of(edges: Sequence[Edge | None], outputs: Sequence[torch.Tensor]) -> list[list[Edge]]:
    """Return, for each edge, the nodes before `outputs` that lead to it, and their places."""
    wanted = {edge: index for index, edge in enumerate(edges) if edge is not None}
    found: list[list[Edge]] = [[] for _ in edges]
    starts = [edge for edge in edges_of(outputs) if edge is not None]
    seen = {edge[0] for edge in starts if edge not in wanted}
    waiting = list(seen)
    while waiting:
        node = waiting.pop()
        for place, edge in enumerate(node.next_functions):
            index = wanted.get(edge)
            if index is not None:
                found[index].append((node, place))
            elif edge[0] is not None and edge[0] not in seen:
                seen.add(edge[0])
                waiting.append(edge[0])
    return found


def most_reads(edges: Sequence[Edge | None], outputs: Sequence[torch.Tensor]) -> int:
    """Return how often the tensor that is read most is read; at least 1."""
    ends = edges_of(outputs)
    found = readers_of(edges, outputs)
    return max([1, *(len(one) + ends.count(edge) for edge, one in zip(edges, found, strict=True))])


def watch_terms(
    edges: Sequence[Edge | None],
    roots: Sequence[tuple[torch.Tensor, torch.Tensor]],
    casts: Mapping[int, Node | None],
) -> dict[int, list[torch.Tensor]]:
    """Return a dict that gets, in a backward from `roots`, the terms of tensors read repeatedly.

    The key is the index of an edge. A gradient that arrives at the tensor itself is a term, too.
    `casts` has, by the index of a leaf, the node that casts the leaf for all its reads; the terms
    that arrive at this node have the keys after the last edge, and are none of the leaf's.
    """
    ends_of_casts = [None if node is None else (node, 0) for node in casts.values()]
    apart = {*casts, *range(len(edges), len(edges) + len(casts))}
    edges = [*edges, *ends_of_casts]
    found: dict[int, list[torch.Tensor]] = {}
    watched: dict[Node, list[tuple[int, list[torch.Tensor]]]] = {}
    outputs = [output for output, _ in roots]
    ends = edges_of(outputs)
    for index, readers in enumerate(readers_of(edges, outputs)):
        arrived = [
            gradient
            for end, (_, gradient) in zip(ends, roots, strict=True)
            if end is not None and end == edges[index]
        ]
        if len(readers) + len(arrived) > 1 or index in apart:
            found[index] = arrived
            for node, place in readers:
                watched.setdefault(node, []).append((place, arrived))
    for node, places in watched.items():
        node.register_hook(partial(_noted, sorted(places, key=lambda one: one[0])))
    return found


def _noted(
    places: list[tuple[int, list[torch.Tensor]]],
    gradients: tuple[torch.Tensor | None, ...],
    _: tuple[torch.Tensor | None, ...],
) -> None:
    for place, terms in places:
        gradient = gradients[place]
        if gradient is not None:
            terms.append(gradient)


def in_slots(
    block: str, terms: Sequence[torch.Tensor | None], slots: int
) -> list[torch.Tensor | None]:
    """Return the terms of one tensor, and None in the place of each that is missing."""
    if len(terms) > slots:
        msg = (
            f"block {block!r} changes an input in place and reads a tensor {len(terms)} times, "
            f"more often than in any call before; exclude it, or set mode = 'graph'"
        )
        raise ModelError(msg)
    return [*terms, *[None] * (slots - len(terms))]


def first_terms(
    last: Node,
    weights: Mapping[Node, Weight],
    start: int,
    take: Callable[[Block, int], torch.Tensor | None],
) -> Callable[[], None]:
    """Return a function. After its call a backward adds earlier sums to the first terms of weights.

    Args:
        last: the node of an output of a block.
        weights: the accumulator of each weight, with the weight's block and index there.
        start: the sequence number of the block's first node.
        take: `take(block, index)` returns and removes the earlier sum of a weight, or None.
    """
    following = _lead(last, weights, take)  # a node's hook that refers to the node is never freed

    def lead() -> None:
        waiting, seen = [*following], set(following)
        while waiting:
            node = waiting.pop()
            if node._sequence_nr() >= start:
                new = [one for one in _lead(node, weights, take) if one not in seen]
                seen.update(new)
                waiting += new

    return lead


def _lead(
    node: Node,
    weights: Mapping[Node, Weight],
    take: Callable[[Block, int], torch.Tensor | None],
) -> list[Node]:
    """Let a node add earlier sums to the terms of weights. Return the other nodes after it."""
    places, others = [], []
    for place, (following, _) in enumerate(node.next_functions):
        weight = None if following is None else weights.get(following)
        if weight is not None:
            places.append((place, weight))
        elif following is not None:
            others.append(following)

    def add(
        terms: tuple[torch.Tensor | None, ...], _: tuple[torch.Tensor | None, ...]
    ) -> tuple[torch.Tensor | None, ...]:
        led = list(terms)
        for place, weight in places:
            term = terms[place]
            earlier = None if term is None else take(*weight)
            if term is not None and earlier is not None:
                led[place] = earlier + term
        return tuple(led)

    if places:
        node.register_hook(add)
    return others
