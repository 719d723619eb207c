"""A context in which the garbage collector passes over what exists."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from neaptide_toolkit.machine.collecting import only_new_objects

if TYPE_CHECKING:
    from collections.abc import Iterator


class Node:
    """An object that can be garbage: it may refer to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def garbage() -> weakref.ref[Node]:
    return weakref.ref(Node())


@pytest.mark.usefixtures("nothing_frozen")
def test_garbage_from_before_is_collected_after_and_new_garbage_within() -> None:
    gc.collect()
    gc.disable()  # no collection but those of this test
    try:
        before = garbage()
        with only_new_objects():
            within = garbage()
            gc.collect()
            assert before() is not None
            assert within() is None
        gc.collect()
        assert before() is None
    finally:
        gc.enable()


@pytest.mark.usefixtures("nothing_frozen")
def test_an_error_within_unfreezes() -> None:
    with pytest.raises(RuntimeError), only_new_objects():
        raise RuntimeError
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("nothing_frozen")
def test_what_the_program_froze_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with only_new_objects():
        assert gc.get_freeze_count() >= frozen - 100  # some may have been freed
    assert gc.get_freeze_count() > 0
