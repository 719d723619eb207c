"""Which targets belong to which logits, told by the loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import DEVICE
from torch.nn.functional import cross_entropy

from neaptide import DataError
from neaptide_plugins.metrics.accuracy import Alignment, align, correct_of
from neaptide_plugins.metrics.sums import Sums, perplexity, weighed

CLASSES = 7


def drawn(*shape: int, ignored: bool = False, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(*shape, CLASSES, generator=generator).to(DEVICE)
    wanted = torch.randint(CLASSES, shape, generator=generator)
    if ignored:
        wanted[torch.rand(shape, generator=generator) < 0.3] = -100
    return logits, wanted.to(DEVICE)


def mean(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits.reshape(-1, CLASSES), wanted.reshape(-1))


def told(logits: torch.Tensor, batch: Any, loss: torch.Tensor, **given: Any) -> Alignment | None:
    return align(logits, batch, loss, **{"key": None, "shift": None, **given})


@pytest.mark.parametrize("ignored", [False, True])
def test_the_loss_tells_whether_logits_predict_the_next_target(ignored: bool) -> None:  # noqa: FBT001
    logits, labels = drawn(4, 9, ignored=ignored)
    batch = {"input_ids": labels.clone(), "labels": labels}
    assert Alignment(0, 0) == told(logits, batch, mean(logits, labels))
    assert Alignment(0, 1) == told(logits, batch, mean(logits[:, :-1], labels[:, 1:]))


def test_of_several_tensors_the_targets_are_those_of_the_loss() -> None:
    logits, wanted = drawn(4, 9)
    other = drawn(4, 9, seed=1)[1]
    assert Alignment(1, 0) == told(logits, (other, wanted), mean(logits, wanted))
    assert Alignment(0, 0) == told(logits, (wanted, other), mean(logits, wanted))


def test_tokens_may_be_one_longer_than_the_logits() -> None:
    logits, _ = drawn(4, 9)
    tokens = drawn(4, 10)[1]
    found = told(logits, {"tokens": tokens}, mean(logits, tokens[:, 1:]))
    assert Alignment(0, 1) == found
    assert torch.equal(tokens[:, 1:], found.pairs(logits, {"tokens": tokens}, None)[1])


def test_the_classes_of_an_image_may_be_in_dim_one() -> None:
    logits, wanted = drawn(2, 5, 6)
    found = told(logits.movedim(-1, 1), (wanted,), mean(logits, wanted))
    assert Alignment(0, 0) == found
    right, count = correct_of(*found.pairs(logits.movedim(-1, 1), (wanted,), None))
    assert (int((logits.argmax(-1) == wanted).sum()), 60) == (int(right), int(count))


def test_a_batch_that_ignores_everything_tells_nothing() -> None:
    logits, labels = drawn(4, 9)
    batch = {"labels": torch.full_like(labels, -100)}
    assert told(logits, batch, torch.zeros(())) is None


@pytest.mark.parametrize(
    ("batch", "given", "wrong"),
    [
        ({"labels": (4, 9)}, {}, "cannot tell from the loss"),
        ({"labels": (4, 8, 2)}, {}, "needs int64 targets of the shape"),
        ({"labels": (4, 9)}, {"key": "target"}, "no tensor 'target' (got ['labels'])"),
        ((), {}, "and targets []"),
    ],
)
def test_what_cannot_be_told_is_refused_in_one_line(
    batch: Any, given: dict[str, Any], wrong: str
) -> None:
    logits, _ = drawn(4, 9)
    if isinstance(batch, dict):
        batch = {name: drawn(*shape)[1] for name, shape in batch.items()}
    with pytest.raises(DataError) as caught:
        told(logits, batch, torch.tensor(123.0), **given)
    (line,) = str(caught.value).splitlines()
    assert wrong in line
    assert "plugins.metrics" in line


def test_settings_decide_where_the_loss_cannot() -> None:
    logits, labels = drawn(4, 9)
    smoothed = torch.tensor(123.0)
    assert Alignment(0, 1) == told(logits, {"target": labels}, smoothed, key="target", shift=1)
    assert Alignment(0, 0) == told(logits, {"labels": labels}, smoothed, shift=0)


def test_equal_logits_are_not_taken_for_one_or_the_other() -> None:
    logits, labels = drawn(4, 9)
    even = torch.zeros_like(logits)
    with pytest.raises(DataError, match="cannot tell"):
        told(even, {"labels": labels}, mean(even, labels))


def test_sums_are_weighed() -> None:
    sums = Sums()
    sums.add("one", torch.tensor(3, device=DEVICE), 4)
    sums.add("one", 1.0, torch.tensor(4, device=DEVICE))
    sums.add("none", 0.0, 0)
    means = sums.means()
    assert 0.5 == means["one"]
    assert means["none"] != means["none"]


def test_a_mean_counts_as_many_samples_and_a_pair_as_it_says() -> None:
    assert (6.0, 3) == weighed(2.0, 3, "f")
    assert (2.0, 7) == weighed((2.0, 7), 3, "f")
    with pytest.raises(DataError, match="must return a number, or a sum and a weight"):
        weighed("text", 3, "f")


def test_a_perplexity_may_be_infinite() -> None:
    assert (1.0, float("inf")) == (perplexity(0.0), perplexity(1e4))
