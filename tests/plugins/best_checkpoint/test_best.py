"""Which evaluation is the best."""

from __future__ import annotations

import math
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from neaptide_plugins.best_checkpoint.best import Best

MODES: tuple[Literal["min", "max"], ...] = ("min", "max")


@given(st.lists(st.floats(), max_size=20), st.sampled_from(MODES))
def test_it_is_the_first_of_the_best_values(
    values: list[float], mode: Literal["min", "max"]
) -> None:
    best = Best()
    for place, value in enumerate(values):
        best = best.after(10 * place, value, mode)
    numbers = [value for value in values if not math.isnan(value)]
    if not numbers:
        assert (best.value, best.step, best.since) == (None, None, len(values))
        return
    first = values.index(min(numbers) if mode == "min" else max(numbers))
    assert (values[first], 10 * first) == (best.value, best.step)
    assert len(values) - 1 - first == best.since


def test_a_repeated_evaluation_changes_nothing() -> None:
    best = Best().after(4, 1.0, "min").after(8, 2.0, "min")
    assert best == best.after(8, 2.0, "min")
    assert best == best.after(8, 0.0, "min")
