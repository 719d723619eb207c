"""Batches in epochs: their order, their number, and the position in them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neaptide.run.feed import Feed
from neaptide_plugins.huggingface_data.batches import EpochBatches, FixedBatches, SampleSource
from neaptide_plugins.huggingface_data.packing import alone, packed, pieces_of

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES = [5, 9, 3, 12, 7, 2, 8, 4, 11, 6, 5]


def source(*, pack: bool = True, length: int = 12) -> SampleSource:
    tokens = np.concatenate([np.full(size, 100 + n, np.int32) for n, size in enumerate(SIZES)])
    counted = np.ones(len(tokens), np.bool_)
    pieces = pieces_of(np.cumsum(SIZES), np.arange(len(SIZES)), counted, length, "cut")
    samples = packed(pieces, length) if pack else alone(pieces)
    return SampleSource(tokens, counted, samples, length, pack, filler=7)


def train(*, shuffle: bool = True, seed: int = 0, **given: Any) -> EpochBatches:
    return EpochBatches(source(**given), 2, seed, shuffle, "these")


def documents(batches: Any) -> list[tuple[int, ...]]:
    return [tuple(batch["input_ids"].unique().tolist()) for batch in batches]


def test_a_packed_batch_is_what_is_written_here() -> None:
    batch = source(length=16).batch([1])
    assert [[100] * 5 + [108] * 11] == batch["input_ids"].tolist()
    assert [[-100] + [100] * 4 + [-100] + [108] * 10] == batch["labels"].tolist()
    assert [[*range(5), *range(11)]] == batch["position_ids"].tolist()


def test_the_rest_of_a_sample_is_a_document_that_counts_for_nothing() -> None:
    made = source(length=13)
    row = next(row for row in range(len(made.samples)) if made.samples.spans(row) == [(17, 29)])
    batch = made.batch([row])
    assert 7 == batch["input_ids"][0, -1]
    assert -100 == batch["labels"][0, -1]
    assert 0 == batch["position_ids"][0, -1]


def test_samples_that_are_not_packed_are_masked() -> None:
    batch = source(pack=False).batch([0, 1])
    assert {"input_ids", "labels", "attention_mask"} == batch.keys()
    assert (2, 12) == batch["input_ids"].shape
    assert [5, 9] == batch["attention_mask"].sum(1).tolist()
    assert [4, 8] == (batch["labels"] != -100).sum(1).tolist()
    assert (1, 8) == source(pack=False).batch([2])["input_ids"].shape


@pytest.mark.parametrize("pack", [True, False])
def test_an_epoch_has_every_document_once_and_the_next_another_order(*, pack: bool) -> None:
    batches = train(pack=pack)
    epochs = [list(batches) for _ in range(3)]
    assert [len(batches)] * 3 == list(map(len, epochs))
    for epoch in epochs:
        found = [document for batch in documents(epoch) for document in batch if document != 7]
        assert sorted(found) == [100 + n for n in range(len(SIZES))]
    assert 3 == len({tuple(documents(epoch)) for epoch in epochs})
    assert documents(epochs[0]) == documents(train(pack=pack))
    assert documents(epochs[0]) != documents(train(pack=pack, seed=1))


def test_without_shuffling_epochs_are_the_same() -> None:
    batches = train(shuffle=False)
    assert documents(batches) == documents(batches)


def same(one: Iterator[Any], other: Iterator[Any], count: int) -> bool:
    return all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in islice(zip(one, other, strict=True), count)
    )


@given(st.integers(0, 30))
def test_a_run_goes_on_with_the_next_batch(used: int) -> None:
    whole, first = iter(Feed(train(), None)), Feed(train(), None)
    for _ in islice(zip(whole, first, strict=False), used):
        pass
    resumed = Feed(train(), first.state_dict())
    assert same(iter(resumed), whole, 12)


def test_a_position_in_other_data_is_refused() -> None:
    batches = train()
    other = attrs.evolve(batches, fingerprint="others")
    with pytest.raises(ValueError, match="one in other files"):
        other.load_state_dict(batches.state_dict())
    with pytest.raises(ValueError, match="no batch 99 in an epoch of"):
        batches.load_state_dict({**batches.state_dict(), "index": 99})


def test_validation_is_always_the_same() -> None:
    fixed = FixedBatches(source(), 2, 2)
    assert 2 == len(fixed) == len(list(fixed))
    assert documents(fixed) == documents(fixed)
    assert 4 == len(list(FixedBatches(source(), 2, 100)))
