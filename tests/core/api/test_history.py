"""What a run remembers of itself, and that it learns of it one update late."""

from __future__ import annotations

import math

from support import tiny_trainer

from neaptide.api.history import GRADIENT_NORMS, LOSSES, History


def test_only_the_newest_values_stay() -> None:
    history = History()
    for index in range(300):
        history.record(float(index), float(-index), 0.1)
    assert 300 == history.updates
    assert tuple(map(float, range(300 - LOSSES, 300))) == history.losses
    assert tuple(-float(index) for index in range(300 - GRADIENT_NORMS, 300)) == (
        history.gradient_norms
    )
    assert 64 == len(history.seconds)


def test_norms_nobody_measured_are_not_there() -> None:
    history = History()
    history.record(1.0, None, 0.1)
    assert ((1.0,), ()) == (history.losses, history.gradient_norms)


def test_state_goes_round_without_times() -> None:
    history, other = History(), History()
    for index in range(5):
        history.record(float(index), math.nan if index == 2 else 1.0, 0.5)
    other.record(9.0, 9.0, 9.0)
    other.load_state_dict(history.state_dict())
    assert (5, history.losses) == (other.updates, other.losses)
    assert repr(history.gradient_norms) == repr(other.gradient_norms)
    assert () == other.seconds


def test_a_loaded_history_still_forgets() -> None:
    history = History()
    history.load_state_dict({"updates": 256, "losses": [0.0] * LOSSES, "gradient_norms": []})
    history.record(1.0, None, 0.1)
    assert (LOSSES, 1.0) == (len(history.losses), history.losses[-1])


def test_the_loop_hands_a_loss_on_one_update_late() -> None:
    trainer, batches = tiny_trainer()
    losses: list[float] = []
    with trainer:
        for batch in batches[:5]:
            assert tuple(losses[:-1]) == trainer.state.history.losses
            losses.append(trainer.step(batch).loss)
        assert tuple(losses[:-1]) == trainer.state.history.losses
    assert tuple(losses) == trainer.state.history.losses
