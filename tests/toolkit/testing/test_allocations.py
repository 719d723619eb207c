"""The count of torch's allocator: peaks, marks, and what has nothing to do with them."""

from __future__ import annotations

import torch

from neaptide_toolkit.testing.allocations import counted, peak_of

SIZE = 100_000


def take(size: int = SIZE) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


def test_the_peak_is_of_what_is_held_at_a_time() -> None:
    def one_after_another() -> None:
        for _ in range(3):
            take()

    assert peak_of(one_after_another) == SIZE
    assert 3 * SIZE == peak_of(lambda: [take() for _ in range(3)])


def test_marks_of_a_name_say_what_is_held_at_each() -> None:
    with counted() as allocations:
        allocations.mark("moment")
        first = take()
        allocations.mark("moment")
        second = take(SIZE // 2)
        allocations.mark("another")
        del first
        allocations.mark("moment")
        del second
    expected = {"moment": [0, SIZE, SIZE // 2], "another": [3 * SIZE // 2]}
    assert expected == allocations.at_marks()


def test_a_peak_belongs_to_the_mark_before_it() -> None:
    with counted() as allocations:
        take(3 * SIZE)
        allocations.mark("first")
        kept = take()
        allocations.mark("second")
        take()
        allocations.mark("first")
        del kept
    assert {"first": SIZE, "second": 2 * SIZE} == allocations.peaks_after_marks()


def test_the_end_of_what_was_there_before_does_not_count() -> None:
    with counted():
        earlier = take()
    with counted() as allocations:
        del earlier
        kept = take()
        allocations.mark("end")
    assert {"end": [SIZE]} == allocations.at_marks()
    del kept


def test_what_backward_saves_is_counted() -> None:
    weight = torch.ones(SIZE, dtype=torch.float32, requires_grad=True)
    with counted() as allocations:
        loss = (weight * 2).square().sum()
        allocations.mark("forward")
        loss.backward()
        del loss
        allocations.mark("backward")
    marks = allocations.at_marks()
    assert 4 * SIZE <= marks["forward"][0] < 4 * SIZE + 64
    assert 4 * SIZE <= marks["backward"][0] < 4 * SIZE + 64
