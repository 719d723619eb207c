"""Digits: the split, shuffling by epoch, the cursor and the missing dependency."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neaptide_plugins.builtin_data.digits import (
    DigitBatches,
    Digits,
    EvalDigits,
    load,
    stratified_split,
)


def numbered(count: int) -> Digits:
    """Images whose every pixel and label is their own number."""
    numbers = torch.arange(count)
    images = numbers.to(torch.float32).reshape(-1, 1, 1, 1).expand(-1, 1, 8, 8)
    return Digits(images=images, labels=numbers)


def test_the_real_digits_are_scaled_and_stratified() -> None:
    training, validation = load(0.2)

    assert (len(training.labels), len(validation.labels)) == (1438, 359)
    assert training.images.shape == (1438, 1, 8, 8)
    assert training.images.dtype == torch.float32
    assert (training.images.min().item(), training.images.max().item()) == (0.0, 1.0)
    assert set(validation.labels.bincount().tolist()) <= {35, 36, 37}


def test_no_image_is_on_both_sides_and_the_split_is_stable() -> None:
    sides = [load(0.2) for _ in range(2)]
    (training, validation), (again, _) = sides

    seen = {image.numpy().tobytes() for image in training.images}

    assert torch.equal(training.images, again.images)
    assert not any(image.numpy().tobytes() in seen for image in validation.images)


@given(count=st.integers(20, 80), seed=st.integers(0, 2**32), share=st.floats(0.2, 0.8))
def test_the_split_holds_out_the_share_of_each_class(count: int, seed: int, share: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator).tolist()

    training, validation = stratified_split(torch.tensor(labels), share)

    held_out = Counter(labels[number] for number in validation)

    assert sorted(training + validation) == list(range(len(labels)))
    assert all(held_out[label] == round(n * share) for label, n in Counter(labels).items())


def test_a_share_that_leaves_a_side_empty_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="validation_share") as caught:
        stratified_split(torch.tensor([0, 1, 2]), 0.1)

    assert str(caught.value) == (
        "holding out 0.1 of 3 digits leaves 3 for training and 0 for validation: "
        "change 'validation_share'"
    )


def test_without_scikit_learn_one_line_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "from neaptide_plugins.builtin_data.digits import load\n"
        "load()"
    )

    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    last = result.stderr.splitlines()[-1]
    expected = 'builtin:digits needs scikit-learn: pip install "neaptide[digits]"'
    assert last == f"ModuleNotFoundError: {expected}"


@given(
    count=st.integers(1, 30),
    batch_size=st.integers(1, 40),
    seed=st.integers(-5, 2**40),
    epochs=st.integers(1, 3),
)
def test_every_image_is_used_once_an_epoch(
    count: int, batch_size: int, seed: int, epochs: int
) -> None:
    batches = DigitBatches(numbered(count), batch_size, seed)
    needed = -(-count * epochs // batch_size)

    labels = [label for batch in islice(batches, needed) for label in batch["y"].tolist()]

    for epoch in range(epochs):
        assert sorted(labels[epoch * count : (epoch + 1) * count]) == list(range(count))


def test_an_image_stays_with_its_label_and_batches_are_full() -> None:
    batch = DigitBatches(numbered(10), batch_size=16, seed=0).batch(3)

    assert batch["x"].shape == (16, 1, 8, 8)
    assert torch.equal(batch["x"][:, 0, 0, 0].long(), batch["y"])


def test_epochs_and_seeds_differ_in_order() -> None:
    one = DigitBatches(numbered(50), batch_size=50, seed=0)
    other = DigitBatches(numbered(50), batch_size=50, seed=1)

    orders = [one.batch(0)["y"], one.batch(1)["y"], other.batch(0)["y"]]

    assert len({tuple(order.tolist()) for order in orders}) == 3


@given(seed=st.integers(0, 2**32), stop=st.integers(0, 12))
def test_resuming_from_a_cursor_continues_the_stream(seed: int, stop: int) -> None:
    whole = [batch["y"] for batch in islice(DigitBatches(numbered(17), 5, seed), 15)]
    first = DigitBatches(numbered(17), 5, seed)
    head = [batch["y"] for batch in islice(first, stop)]
    second = DigitBatches(numbered(17), 5, seed)

    second.load_state_dict(first.state_dict())
    tail = [batch["y"] for batch in islice(second, 15 - stop)]

    assert torch.equal(torch.stack(head + tail), torch.stack(whole))


@pytest.mark.parametrize(("count", "sizes"), [(5, [2, 2, 1]), (4, [2, 2]), (99, [2, 2, 2, 1])])
def test_eval_batches_are_fixed_and_in_order(count: int, sizes: list[int]) -> None:
    batches = EvalDigits(numbered(7), batch_size=2, count=count)

    passes = [torch.cat([batch["y"] for batch in batches]).tolist() for _ in range(2)]

    assert [len(batch["x"]) for batch in batches] == sizes
    assert len(batches) == len(sizes)
    assert passes == [list(range(sum(sizes)))] * 2
