"""Two configurations of the same training: what differs between them is bisected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import planted_faults as planted
import pytest
from verified import CONFIG

from neaptide import hookimpl
from neaptide_plugins.ema.plugin import Ema
from neaptide_toolkit.verifying import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide_toolkit.verifying import Verification

HALF: dict[str, Any] = {"ema": {"decay": 0.5}}
BESIDE: dict[str, Any] = {"activation-checkpointing": {}}
BOTH: dict[str, Any] = {"optimizer-offload": {}}


def scaled_where(is_wrong: Callable[[Any], bool]) -> Any:
    """Return a hook that scales the loss of a backward in some runs."""

    @hookimpl
    def around_backward(self: Any, run: Any) -> Any:
        def called(following: Any, *, loss: Any, **more: Any) -> None:
            following(loss=loss * (1.5 if is_wrong(run.config) else 1.0), **more)

        return called

    return around_backward


def compared(ours: Any, other: Any, *plugins: Any, train: Any = ()) -> Verification:
    one = {**CONFIG, "plugins": {**BOTH, **ours}, "train": {**CONFIG["train"], **dict(train)}}
    two = {**CONFIG, "plugins": {**BOTH, **other}}
    return verify(one, steps=2, against=two, plugins=plugins, memory=False)


@pytest.mark.parametrize(
    ("is_wrong", "ours", "other", "train", "guilty"),
    [
        (
            lambda config: config.plugins["ema"].decay == 0.5,
            {"ema": {"decay": 0.5, "warmup": False}},
            {"ema": {"decay": 0.9}, **BESIDE},
            {},
            (("ema",), ("ema.decay = 0.5 (the other has 0.9)",)),
        ),
        pytest.param(
            lambda config: True,
            BESIDE,
            HALF,
            {},
            (("ema",), ("ema left out, which the other has",)),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda config: config.train.threads == 1,
            {**HALF, **BESIDE},
            HALF,
            {"threads": 1},
            ((), ("train.threads = 1 (the other has None)",)),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["a setting", "a plugin that is left out", "a setting of no plugin"],
)
def test_a_change_is_guilty(
    monkeypatch: pytest.MonkeyPatch, is_wrong: Any, ours: Any, other: Any, train: Any, guilty: Any
) -> None:
    monkeypatch.setattr(Ema, "around_backward", scaled_where(is_wrong), raising=False)
    (found,) = compared(ours, other, train=train).findings
    assert ("training", *guilty) == (found.check, found.plugins, found.settings)
    assert found.difference is not None
    assert 1 == found.difference.step
    assert found.difference.parting.gap > 0


@pytest.mark.slow
def test_a_plugin_that_is_added_is_guilty() -> None:
    (found,) = compared({**HALF, **BESIDE}, HALF, planted.rounds()).findings
    assert ("training", ("rounds",), ()) == (found.check, found.plugins, found.settings)
    assert found.difference is not None
    assert "weights/blocks.1.up.weight" == found.difference.parting.name
