"""State that is not in tensors: what a repeated call sees, and what is left afterwards."""

from __future__ import annotations

import random

import numpy as np
import pytest
from torch import nn

from neaptide_toolkit.recompute import KeptParts, parts_of
from neaptide_toolkit.recompute.untracked_state import RandomState, UntrackedState, learn_moves

DRAWS = {
    "python": random.random,
    "numpy": np.random.random,
    "numpy's second normal number": np.random.standard_normal,
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=list(DRAWS))
def test_what_a_call_drew_is_drawn_again_and_then_forgotten(draw: object) -> None:
    assert callable(draw)
    np.random.standard_normal()  # noqa: NPY002 - now numpy holds a second number
    state = UntrackedState.now([nn.Linear(1, 1)])
    drawn = draw()
    learn_moves([state])
    after = RandomState.now()
    with state.restored():
        assert draw() == drawn
    assert after.equals(RandomState.now())


@pytest.mark.parametrize("draw", DRAWS.values(), ids=list(DRAWS))
def test_a_call_that_puts_a_generator_back_sees_its_state_again(draw: object) -> None:
    assert callable(draw)
    states = [UntrackedState.now([nn.Linear(1, 1)]) for _ in range(2)]
    start = RandomState.now()
    drawn = draw()
    start.bring_back()
    learn_moves(states)
    assert [state.moved for state in states] == [False, False]
    draw()
    later = RandomState.now()
    with states[0].restored():
        assert draw() == drawn
    assert later.equals(RandomState.now())


def test_another_generator_of_numpy_is_set_back() -> None:
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.Philox(3))  # its state is a dict with arrays
    try:
        state = UntrackedState.now([nn.Linear(1, 1)])
        drawn = np.random.random()  # noqa: NPY002 - the global generator
        learn_moves([state])
        assert state.moved
        with state.restored():
            assert np.random.random() == drawn  # noqa: NPY002
    finally:
        np.random.set_bit_generator(before)


def test_a_state_that_does_not_change_is_not_copied_again() -> None:
    np.random.seed(0)  # noqa: NPY002
    first = RandomState.now()
    assert RandomState.now().of_numpy is first.of_numpy
    np.random.random()  # noqa: NPY002
    assert RandomState.now().of_numpy is not first.of_numpy


def test_of_a_call_in_pieces_it_is_known_which_piece_drew() -> None:
    states = [UntrackedState.now([nn.Linear(1, 1)])]
    random.random()
    states.append(UntrackedState.now([nn.Linear(1, 1)]))
    learn_moves(states)
    assert [state.moved for state in states] == [True, False]


def test_attributes_are_restored_and_put_back() -> None:
    module = nn.Sequential(nn.Linear(1, 1))
    module.seen = ["before"]
    state = UntrackedState.now(parts_of(module))
    module.seen.append("after")
    module.extra = 1
    with state.restored():
        assert module.seen == ["before"]
        assert not hasattr(module, "extra")
        module.seen.append("inside")
    assert (module.seen, module.extra) == (["before", "after"], 1)
    with state.restored():
        assert module.seen == ["before"]


def test_an_attribute_that_only_the_repetition_changes_is_put_back() -> None:
    module = nn.Sequential(nn.Linear(1, 1))
    module.calls = 3
    state = UntrackedState.now(parts_of(module))
    with state.restored():
        module.calls += 1
        module.extra = "new"
        del module[0].in_features
    assert (module.calls, module[0].in_features) == (3, 1)
    assert not hasattr(module, "extra")


def test_the_generator_of_python_is_the_same_after_it_was_brought_back() -> None:
    random.gauss(0, 1)  # the second number of the pair is kept
    before, state = random.getstate(), RandomState.now()
    random.gauss(0, 1)
    random.random()
    assert not state.equals(RandomState.now())
    state.bring_back()
    assert before == random.getstate()
    assert state.equals(RandomState.now())


def test_parts_are_searched_again_after_a_change() -> None:
    module = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU()))
    parts = KeptParts(module)
    assert parts.now() is parts.now()
    for change in (
        lambda: module.append(nn.Dropout()),
        lambda: module[1].append(nn.Tanh()),
        lambda: setattr(module, "0", nn.Identity()),
        lambda: module.pop(1),
    ):
        change()
        assert parts.now() == list(module.modules())


def test_parts_are_the_modules_of_torch_in_the_same_order() -> None:
    shared = nn.Linear(1, 1)
    inner = nn.ModuleDict({"a": shared, "b": nn.Sequential(nn.ReLU(), shared)})
    module = nn.Sequential(shared, inner, nn.Dropout(), inner, nn.Identity())
    module.register_module("nothing", None)
    assert parts_of(module) == list(module.modules())
    model = nn.TransformerDecoderLayer(8, 2)
    assert parts_of(model) == list(model.modules())
