"""Splitting: the pieces of any batch, put together again, are the batch."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, defaultdict
from types import MappingProxyType
from typing import Any, NamedTuple

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BatchEncoding

from neaptide.api.steps import batch_length
from neaptide_toolkit.ranks.splitting import rows, split

pytestmark = pytest.mark.usefixtures("on_device")


class Pair(NamedTuple):
    one: Any
    other: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    one: Any
    other: Any = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(slots=True)
class Slotted:
    one: Any
    kept: int = dataclasses.field(init=False, default=7)


@attrs.frozen
class Attrs:
    one: Any
    _other: Any


def leaves(rows: int) -> st.SearchStrategy[Any]:
    """Return tensors of `rows` rows, tensors of other shapes, and things that are no tensors."""
    shapes = st.sampled_from([(rows,), (rows, 2), (rows, 1, 3), (), (rows + 1, 2), (0, rows)])
    numbers = shapes.map(lambda shape: torch.rand(shape) if shape else torch.tensor(0.5))
    return numbers | st.sampled_from([None, 3, "text", torch.float32, range(4)])


def nested(rows: int) -> st.SearchStrategy[Any]:
    def inside(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        keyed = st.dictionaries(st.sampled_from("abc"), children, max_size=3)
        return (
            st.lists(children, max_size=3)
            | st.lists(children, max_size=3).map(tuple)
            | keyed
            | keyed.map(OrderedDict)
            | keyed.map(UserDict)
            | keyed.map(MappingProxyType)
            | keyed.map(lambda items: defaultdict(list, items))
            | st.builds(Pair, children, children)
            | st.builds(Frozen, children, children)
            | st.builds(Slotted, children)
            | st.builds(Attrs, children, children)
        )

    return st.recursive(leaves(rows), inside, max_leaves=8)


def parts_of(value: Any) -> list[Any] | None:
    """Return what a container holds, read without the splitter's help; None for a leaf."""
    if isinstance(value, dict | UserDict | MappingProxyType):
        return [value[key] for key in value]
    if isinstance(value, list | tuple):
        return [value[index] for index in range(len(value))]
    if isinstance(value, Frozen):
        return [value.one, value.other]
    if isinstance(value, Slotted):
        return [value.one, value.kept]
    if isinstance(value, Attrs):
        return [value.one, value._other]
    return None


def check_joined(whole: Any, pieces: list[Any], length: int) -> None:
    """Assert that `pieces` put together are `whole`: structure, bits, and what they share."""
    for piece in pieces:
        # A view of a mapping that cannot be changed comes as a dict.
        expected = dict if isinstance(whole, MappingProxyType) and length else type(whole)
        assert expected is type(piece) or piece is whole
    inner = parts_of(whole)
    if inner is not None:
        for index, child in enumerate(inner):
            each = [parts_of(piece) or [] for piece in pieces]
            assert {len(inner)} == {len(held) for held in each}
            check_joined(child, [held[index] for held in each], length)
    elif isinstance(whole, torch.Tensor) and whole.ndim and whole.shape[0] == length:
        assert torch.equal(whole, torch.cat(pieces))
        assert {whole.untyped_storage().data_ptr()} == {
            piece.untyped_storage().data_ptr() for piece in pieces
        }
    else:
        assert all(piece is whole for piece in pieces)


@given(batch=st.integers(1, 7).flatmap(nested), pieces=st.integers(1, 9))
def test_the_pieces_of_any_batch_are_the_batch(batch: Any, pieces: int) -> None:
    length = rows(batch) or 0
    parts = split(batch, pieces)
    assert max(1, min(pieces, length)) == len(parts)
    if len(parts) == 1:
        assert parts[0] is batch
        return
    sizes = [rows(part) for part in parts]
    assert length == sum(sizes)
    assert 1 <= min(sizes)
    assert max(sizes) - min(sizes) <= 1
    check_joined(batch, parts, length)


@given(st.recursive(leaves(3), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_a_batch_has_as_many_rows_as_the_core_weighs_it_by(batch: Any) -> None:
    found = rows(batch)
    assert batch_length(batch) == (1 if found is None else found)


@pytest.mark.parametrize(
    "batch", [None, 3, "text", torch.tensor(1.0), {}, {"a": [torch.tensor(2)]}]
)
def test_without_a_row_there_is_nothing_to_split(batch: Any) -> None:
    assert rows(batch) is None
    assert [batch] == split(batch, 4)


def test_an_encoding_of_transformers_stays_one() -> None:
    batch = BatchEncoding({"input_ids": torch.arange(10).reshape(5, 2), "length": 2})
    parts = split(batch, 2)
    assert [BatchEncoding] * 2 == [type(part) for part in parts]
    assert [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]] == [
        part.input_ids.flatten().tolist() for part in parts
    ]
    assert [2, 2] == [part["length"] for part in parts]
    assert (5, 2) == tuple(batch["input_ids"].shape)


def test_a_defaultdict_keeps_its_default() -> None:
    batch = defaultdict(list, x=torch.arange(4))
    assert [[], []] == [part["missing"] for part in split(batch, 2)]
    assert ["x"] == list(batch)
