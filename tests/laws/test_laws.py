"""Whatever people do between and inside steps is exact with every exact plugin, or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from habits_between import BETWEEN
from habits_inside import INSIDE
from law_loops import STEPS, Habit, Loop, batch, loss_of, plain, start, traced, trained
from law_ways import LISTED, WAYS, listed, pairs
from support import same_tensors

from neaptide import HybridTrainer, NeaptideError
from neaptide_toolkit.testing.parting import partings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HABITS = [*BETWEEN, *INSIDE]

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns about some habits


def judged(habit: Habit, plugins: dict[str, Any], directory: Path) -> str:
    """Return `exact` or `refused`, or what is wrong."""
    try:
        found = trained(habit, plugins, directory)
    except NeaptideError as error:
        return "refused" if "\n" not in str(error) else f"refused in several lines: {error}"
    except Exception as error:  # noqa: BLE001 - it is what the test tells
        return f"{type(error).__name__}: {error}"[:300]
    expected = plain(habit)
    if expected.losses != found.losses:
        return f"losses {found.losses} instead of {expected.losses}"
    for parting in partings(expected.weights, found.weights):
        return f"weight {parting}"
    if "ema" not in plugins and expected.evaluation != pytest.approx(found.evaluation, rel=1e-6):
        return f"evaluated to {found.evaluation} instead of {expected.evaluation}"
    return "exact"


def test_the_table_is_long() -> None:
    assert len(HABITS) >= 75
    assert len({habit.name for habit in HABITS}) == len(HABITS)
    assert len(LISTED) <= 5


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.name)
def test_a_habit_without_a_plugin_is_exact(habit: Habit, tmp_path: Path) -> None:
    assert judged(habit, {}, tmp_path) in ("exact", "refused")


@pytest.mark.parametrize("way", [*WAYS, *pairs()])
def test_what_nobody_objects_to_is_exact(way: str, tmp_path: Path) -> None:
    """Otherwise a plugin that refuses everything would keep the laws."""
    (usual,) = [habit for habit in HABITS if habit.name == "nothing unusual"]
    assert judged(usual, {**WAYS, **pairs()}[way], tmp_path) == "exact"


def habits_with_ways() -> list[Any]:
    """Return every habit with every way; three of four are slow."""
    return [
        pytest.param(
            habit,
            way,
            id=f"{habit.name}-{way}",
            marks=[pytest.mark.slow] if (row + column) % 4 else [],
        )
        for row, habit in enumerate(HABITS)
        for column, way in enumerate(WAYS)
    ]


@pytest.mark.parametrize(("habit", "way"), habits_with_ways())
def test_a_habit_with_an_exact_plugin_is_exact_or_refused(
    habit: Habit, way: str, tmp_path: Path
) -> None:
    found = judged(habit, WAYS[way], tmp_path)
    assert (found in ("exact", "refused")) is not listed(habit.name, WAYS[way]), found


def clamp(loop: Loop) -> None:
    for weight in loop.model.parameters():
        weight.data.clamp_(-0.1, 0.1)


@pytest.mark.parametrize("by", ["data", "observe"])
@pytest.mark.parametrize("way", WAYS)
def test_what_other_code_changes_between_the_steps_of_fit_counts(
    way: str, by: str, tmp_path: Path
) -> None:
    clamping = Habit("clamped", before=lambda loop: clamp(loop) if loop.step else None)
    expected, loop = plain(clamping), start(clamping)

    def batches() -> Iterator[Any]:
        for step in range(STEPS):
            if step and by == "data":
                clamp(loop)
            yield batch(step)

    def observe(*_: Any) -> None:
        loop.step += 1
        if by == "observe" and loop.step < STEPS:
            clamp(loop)

    config = {"plugins": WAYS[way], "train": {"steps": STEPS}, "run": {"dir": str(tmp_path)}}
    trainer = HybridTrainer(loop.model, loop.optimizer, loss_fn=loss_of, config=config)
    with trainer:
        trainer.fit(batches() if by == "data" else [*batches()], observe=observe)
    assert same_tensors(expected.weights, traced(loop, [], 0.0).weights)


@pytest.mark.slow
@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.name)
def test_a_habit_with_two_exact_plugins_is_exact_or_refused(habit: Habit, tmp_path: Path) -> None:
    found = {
        name: judged(habit, plugins, tmp_path / str(place))
        for place, (name, plugins) in enumerate(pairs().items())
    }
    wrong = {name: one for name, one in found.items() if one not in ("exact", "refused")}
    assert {} == {name: one for name, one in wrong.items() if not listed(habit.name, pairs()[name])}
