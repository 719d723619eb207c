"""Which passes are lowered, and what is told of it, without a run around them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from neaptide import Outcome
from neaptide.api.phases import FULL, WARMUP
from neaptide_plugins.low_precision_backward.meter import VarianceVerdict
from neaptide_plugins.low_precision_backward.passes import Passes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neaptide import Phase


@attrs.define
class Chosen:
    names: dict[str, str]


@attrs.define
class Meter:
    due: bool = False
    updates: int = 0


@attrs.define
class Handler:
    met: set[str] = attrs.field(factory=set)


@attrs.define
class Lowering:
    """Notes whether it is on."""

    verdict: VarianceVerdict | None = None
    chosen: Chosen = attrs.field(factory=lambda: Chosen({"0": "a", "1": "b"}))
    meter: Meter = attrs.field(factory=Meter)
    handler: Handler = attrs.field(factory=Handler)
    refused: str = ""
    on: bool = False

    @contextmanager
    def lowered(self) -> Iterator[None]:
        self.on = True
        yield
        self.on = False

    def measure(self, model: Any, store: Any, call: Callable[[], Any]) -> Any:
        assert not self.on
        if self.verdict is None:
            return None
        self.refused = self.verdict.reason
        return self.verdict, "L2"


class Log:
    def __init__(self) -> None:
        self.events: list[str] = []

    def info(self, event: str, **_: Any) -> None:
        self.events.append(event.partition(".")[2])

    warning = info


def passes(lowering: Any) -> tuple[Any, Log]:
    log: Any = Log()
    store: Any = None
    return Passes(lowering, ("full",), store, log), log


def forward(one: Any, phase: Phase, moment: str) -> bool:
    """Return whether it was lowered."""
    found: bool = one.forward(lambda **_: one.lowering.on, model=None, phase=phase, moment=moment)
    return found


def test_training_forwards_and_backwards_of_the_phases_are_lowered_and_nothing_else() -> None:
    one, _ = passes(Lowering())
    assert forward(one, FULL, "train")
    assert not forward(one, FULL, "probe")
    assert not forward(one, WARMUP, "train")
    lowered = []
    for phase in (FULL, WARMUP):
        one.backward(lambda **_: lowered.append(one.lowering.on), phase=phase)
    assert [True, False] == lowered


@pytest.mark.parametrize(
    ("verdict", "event", "goes_on"),
    [
        (None, None, True),
        (VarianceVerdict(0.01, passed=True, reason=""), "measured", True),
        (VarianceVerdict(0.5, passed=False, reason="too much"), "fell_back", False),
    ],
    ids=["no verdict yet", "passed", "failed"],
)
def test_a_forward_that_is_due_is_measured_first(
    verdict: VarianceVerdict | None, event: str | None, *, goes_on: bool
) -> None:
    one, log = passes(Lowering(verdict, meter=Meter(due=True)))
    assert goes_on == forward(one, FULL, "train")
    assert ([] if event is None else [event]) == log.events
    assert goes_on == one.active(FULL)


def test_updates_are_counted_where_they_were_made_in_low_precision() -> None:
    one, log = passes(Lowering(handler=Handler({"a", "b"})))
    for outcome, phase in (
        (Outcome.APPLIED, FULL),
        (Outcome.SKIPPED, FULL),
        (Outcome.APPLIED, WARMUP),
    ):
        assert outcome is one.update(lambda o=outcome, **_: o, phase=phase)
    assert 1 == one.lowering.meter.updates
    assert [] == log.events


def test_weights_that_nobody_multiplied_are_told_of_once() -> None:
    one, log = passes(Lowering(handler=Handler({"a"})))
    for _ in range(3):
        one.update(lambda **_: Outcome.APPLIED, phase=FULL)
    assert ["not_met"] == log.events
