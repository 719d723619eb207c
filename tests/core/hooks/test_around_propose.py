"""What is around the asking for an update corrects it, scales it, drops it, or is told off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
import torch
from support import CYCLE, plugin_with, same_tensors, stranger, tensors_of, tiny_trainer

from neaptide import PluginError, Update, hookimpl
from neaptide_toolkit.testing import HOSTILE_STORE

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import PluginSpec
    from neaptide.api.spans import Span


def scaled(update: Update, share: float) -> Update:
    """Return `share` of an update, for as much of the horizon."""
    return attrs.evolve(
        update,
        horizon=max(1, round(share * update.horizon)),
        delta=lambda span: update.delta(span) * share,
    )


def predictor(size: float) -> PluginSpec:
    @hookimpl
    def propose_update(self: Any, horizon: int) -> Update:
        del self

        def delta(span: Span) -> torch.Tensor:
            return torch.full(span.shape, size)

        return Update(horizon, delta)

    return stranger(plugin_with(propose_update=propose_update), "oracle", claims={"predictor"})


def corrector(correct: Callable[[Any], Any], name: str = "corrector") -> PluginSpec:
    @hookimpl
    def around_propose(self: Any) -> Callable[..., Any]:
        del self
        return lambda following, **given: correct(following(**given))

    return stranger(plugin_with(around_propose=around_propose), name)


def run(*plugins: Any) -> tuple[dict[str, torch.Tensor], Any]:
    trainer, batches = tiny_trainer({"phases": CYCLE}, plugins)
    with trainer:
        for batch in batches[:9]:
            trainer.step(batch)
        return tensors_of(trainer.model), trainer.state


@pytest.mark.parametrize("store", [(), (HOSTILE_STORE,)], ids=["resident", "hostile"])
def test_the_guard_judges_what_is_made_of_a_proposal(store: Any) -> None:
    half = corrector(lambda update: scaled(update, 0.5))
    expected, _ = run(predictor(0.001), *store)
    found, state = run(predictor(0.002), half, *store)
    assert same_tensors(expected, found)
    assert (1, 2) == (state.jumps, state.predicted)


def test_the_first_plugin_has_the_last_word() -> None:
    heard: list[int] = []

    def listen(update: Update) -> Update:
        heard.append(update.horizon)
        return update

    half = corrector(lambda update: scaled(update, 0.5), "half")
    run(corrector(listen, "listener"), half, predictor(0.001))
    run(half, corrector(listen, "listener"), predictor(0.001))
    assert [2, 5] == heard


def test_a_proposal_dropped_is_an_ordinary_step() -> None:
    expected, _ = run()
    found, state = run(predictor(0.001), corrector(lambda update: None))
    assert same_tensors(expected, found)
    assert 0 == state.jumps


def test_nothing_proposed_is_none_to_what_is_around() -> None:
    heard: list[Any] = []
    expected, _ = run()
    found, _ = run(stranger(plugin_with(), "mute", claims={"predictor"}), corrector(heard.append))
    assert [None] == heard
    assert same_tensors(expected, found)


def test_something_else_than_an_update_names_the_plugin() -> None:
    message = "plugin 'corrector' must return Update or None from 'around_propose'"
    with pytest.raises(PluginError, match=message):
        run(predictor(0.001), corrector(lambda update: 1.0))
