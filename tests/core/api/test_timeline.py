"""The timeline of a run: what is named, how it nests, and that listening changes no bit."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import CYCLE, plugin_with, same_tensors, stranger, tensors_of, tiny_trainer

from neaptide import Update, hookimpl
from neaptide.api.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neaptide.api.timeline import Opener


def recorder(events: list[tuple[str, str, str]]) -> Opener:
    @contextmanager
    def opener(name: str, category: str) -> Iterator[None]:
        events.append(("in", name, category))
        try:
            yield
        finally:
            events.append(("out", name, category))

    return opener


@hookimpl
def after_step(self: Any) -> None:
    """Look on."""


@hookimpl
def around_forward(self: Any) -> Any:
    """Pass everything through."""
    return lambda following, **arguments: following(**arguments)


@hookimpl
def propose_update(self: Any) -> Update:
    """Propose to stay."""
    return Update(3, lambda span: torch.zeros(span.shape))


PLUGIN = plugin_with(
    after_step=after_step, around_forward=around_forward, propose_update=propose_update
)
SPEC = stranger(PLUGIN, claims={"predictor"})


def traced(steps: int) -> list[tuple[str, str, str]]:
    events: list[tuple[str, str, str]] = []
    trainer, batches = tiny_trainer({"phases": CYCLE}, [SPEC])
    with trainer:
        end = trainer.run.timeline.listen(recorder(events))
        for batch in batches[:steps]:
            trainer.step(batch)
        end()
        trainer.step(batches[steps])
    return events


def test_steps_parts_and_plugins_are_named() -> None:
    opened = [(name, category) for way, name, category in traced(1) if way == "in"]
    assert [
        ("step 1 warmup", "step"),
        ("around_train_step", "core"),
        ("stranger: around_forward", "stranger"),
        ("around_forward", "core"),
        ("around_backward", "core"),
        ("around_optimizer_step", "core"),
        ("stranger: after_step", "stranger"),
    ] == opened


def test_spans_nest_and_a_jump_has_its_own() -> None:
    open_: list[tuple[str, str]] = []
    seen = set()
    for way, *span in traced(8):
        if way == "in":
            open_.append(tuple(span))
            seen.add(tuple(span))
        else:
            assert tuple(span) == open_.pop()
    assert [] == open_
    assert {("step 7 predict", "step"), ("stranger: propose_update", "stranger")} <= seen


def test_listening_changes_no_bit() -> None:
    weights = []
    for listen in (False, True):
        trainer, batches = tiny_trainer({"phases": CYCLE}, [SPEC])
        with trainer:
            if listen:
                trainer.run.timeline.listen(recorder([]))
            for batch in batches[:8]:
                trainer.step(batch)
            weights.append(tensors_of(trainer.model))
    assert same_tensors(*weights)


def test_one_listens_at_a_time() -> None:
    timeline, events = Timeline(), []
    end = timeline.listen(recorder(events))
    with pytest.raises(RuntimeError, match="being recorded already"):
        timeline.listen(recorder([]))
    end()
    end()
    with timeline.open("nobody", "listens"):
        pass
    assert [] == events
    timeline.listen(recorder(events))
    end()  # another one's end is not this one's
    with timeline.open("a", "b"):
        pass
    assert [("in", "a", "b"), ("out", "a", "b")] == events
