"""Finds where a block reads a tensor. Each read is a term of the tensor's gradient.

Autograd adds the terms of a tensor one by one, in the order of the graph. If the terms of one
block were added up first, and then added to the terms of other readers, the sum would have other
bits. So the node that stands for a block returns the terms one by one, too.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import attrs
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


def _places(edges: Sequence[Edge | None]) -> dict[tuple[Node | None, int], int]:
    return {edge: index for index, edge in enumerate(edges) if edge is not None}


def readers_of(edges: Sequence[Edge | None], outputs: Sequence[torch.Tensor]) -> list[list[Edge]]:
    """Return, for each edge, the nodes before `outputs` that lead to it, and their places."""
    wanted = _places(edges)
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


@attrs.frozen(eq=False)
class Reads:
    """Where a call has read its tensors."""

    most: int
    """How often it has read the tensor that it has read most; at least 1."""
    paths: list[list[tuple[int, ...]]]
    """For each tensor the ways to its readers: the number of an output, and places from there."""
    nodes: int
    """How many nodes the call has made."""

    def followed(
        self, edges: Sequence[Edge | None], outputs: Sequence[torch.Tensor], nodes: int
    ) -> list[list[Edge]] | None:
        """Return what `readers_of` returns for the same call again, or None for another graph.

        To follow the ways takes a small part of the time of a search.
        """
        if nodes != self.nodes:
            return None
        found: list[list[Edge]] = []
        for edge, ways in zip(edges, self.paths, strict=True):
            readers = [_followed(outputs, way) for way in ways]
            if any(one is None or one[0].next_functions[one[1]] != edge for one in readers):
                return None
            found.append([one for one in readers if one is not None])
        return found


def _followed(outputs: Sequence[torch.Tensor], way: tuple[int, ...]) -> Edge | None:
    node = outputs[way[0]].grad_fn
    for place in way[1:-1]:
        following = () if node is None else node.next_functions
        if place >= len(following):
            return None
        node = following[place][0]
    if node is None or way[-1] >= len(node.next_functions):
        return None
    return node, way[-1]


def reads_of(edges: Sequence[Edge | None], outputs: Sequence[torch.Tensor], nodes: int) -> Reads:
    """Return the reads of a call that has returned `outputs` and made as many nodes."""
    wanted = _places(edges)
    paths: list[list[tuple[int, ...]]] = [[] for _ in edges]
    counts = [0] * len(edges)
    before: dict[Node, tuple[Node | None, int]] = {}
    for number, edge in enumerate(edges_of(outputs)):
        if edge in wanted:
            counts[wanted[edge]] += 1
        elif edge is not None:
            before.setdefault(edge[0], (None, number))
    waiting = deque(before)
    while waiting:
        node = waiting.popleft()
        for place, following in enumerate(node.next_functions):
            index = wanted.get(following)
            if index is not None:
                counts[index] += 1
                paths[index].append(_way(before, node, place))
            elif following[0] is not None and following[0] not in before:
                before[following[0]] = (node, place)
                waiting.append(following[0])
    return Reads(max([1, *counts]), paths, nodes)


def _way(
    before: Mapping[Node, tuple[Node | None, int]], node: Node | None, place: int
) -> tuple[int, ...]:
    way = [place]
    while node is not None:
        node, place = before[node]
        way.append(place)
    return tuple(reversed(way))


def watch_terms(
    edges: Sequence[Edge | None],
    roots: Sequence[tuple[torch.Tensor, torch.Tensor]],
    casts: Mapping[int, Node | None],
    known: list[list[Edge]] | None = None,
) -> dict[int, list[torch.Tensor]]:
    """Return a dict that gets, in a backward from `roots`, the terms of tensors read repeatedly.

    The key is the index of an edge. A gradient that arrives at the tensor itself is a term, too.
    `casts` has, by the index of a leaf, the node that casts the leaf for all its reads; the terms
    that arrive at this node have the keys after the last edge, and are none of the leaf's. `known`
    has the readers of the edges, if they are known and there are no casts.
    """
    ends_of_casts = [None if node is None else (node, 0) for node in casts.values()]
    apart = {*casts, *range(len(edges), len(edges) + len(casts))}
    edges = [*edges, *ends_of_casts]
    found: dict[int, list[torch.Tensor]] = {}
    watched: dict[Node, list[tuple[int, list[torch.Tensor]]]] = {}
    outputs = [output for output, _ in roots]
    ends = edges_of(outputs)
    for index, readers in enumerate(known or readers_of(edges, outputs)):
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
