"""An error that ends `fit` is the one that is told, also if pending updates then fail."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from support import tiny_trainer

from neaptide import DataError, Interrupted
from neaptide.api.phases import PREDICT
from neaptide.errors import ended_by

CONFIG = {"train": {"steps": 6}}


def trainer_whose_drain_fails(error: BaseException) -> tuple[Any, list[Any]]:
    trainer, batches = tiny_trainer(CONFIG)

    def drain() -> None:
        raise error

    trainer.store.drain = drain  # type: ignore[method-assign]  # as a store of a plugin would fail
    return trainer, batches


@pytest.mark.parametrize(
    "first",
    [torch.OutOfMemoryError("none left"), KeyboardInterrupt(), DataError("no more"), SystemExit(5)],
    ids=lambda error: type(error).__name__,
)
def test_the_error_of_a_step_is_told_with_that_of_pending_updates(first: BaseException) -> None:
    trainer, batches = trainer_whose_drain_fails(OSError("the copy failed\nhere"))

    def observe(*_: Any) -> None:
        raise first

    with pytest.raises(type(first)) as caught:
        trainer.fit(batches, observe=observe)
    assert caught.value is first
    assert first.__notes__ == ["after this error: OSError: the copy failed here"]


def test_a_signal_is_told_with_the_error_of_pending_updates() -> None:
    trainer, batches = trainer_whose_drain_fails(OSError("the copy failed"))

    def observe(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted) as caught:
        trainer.fit(batches, observe=observe)
    assert caught.value.__notes__ == ["after this error: OSError: the copy failed"]


def test_the_error_of_pending_updates_is_told_after_a_run_that_had_none() -> None:
    error = OSError("the copy failed")
    trainer, batches = trainer_whose_drain_fails(error)
    try:
        int("a")
    except ValueError:  # an error of the caller's is not one of the run
        with pytest.raises(OSError, match="the copy failed") as caught:
            trainer.fit(batches)
    assert caught.value is error


def trainer_whose_last_loss_fails(error: BaseException) -> tuple[Any, list[Any]]:
    trainer, batches = tiny_trainer(CONFIG)

    def settle() -> None:
        raise error

    trainer._session.loop.settle = settle  # as a device reports an error where a value is read
    return trainer, batches


def test_the_error_of_a_block_is_told_with_that_of_the_last_step() -> None:
    trainer, _ = trainer_whose_last_loss_fails(OSError("the device failed"))
    first = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught, trainer:
        raise first
    assert caught.value is first
    assert first.__notes__ == ["after this error: OSError: the device failed"]


def test_the_error_of_the_last_step_is_told_and_the_run_is_closed() -> None:
    error = OSError("the device failed")
    trainer, _ = trainer_whose_last_loss_fails(error)
    with pytest.raises(OSError, match="the device failed") as caught, trainer:
        pass
    assert caught.value is error
    assert trainer._session.error is error
    trainer.close()  # it is closed already


def test_the_error_of_a_predictor_is_told_with_that_of_its_gradients() -> None:
    trainer, batches = tiny_trainer(CONFIG)
    trainer.step(batches[0])

    def raises(error: Exception) -> Any:
        def call(*_: Any, **__: Any) -> None:
            raise error

        return call

    loop, first = trainer._session.loop, ValueError("mine")
    loop._propose, trainer.store.zero_gradients = raises(first), raises(OSError("none left"))
    with pytest.raises(ValueError, match="mine"):
        loop._predict(batch=batches[0], horizon=3, phase=PREDICT)
    assert first.__notes__ == ["after this error: OSError: none left"]


def test_the_action_at_the_end_is_called_once() -> None:
    calls = []
    with ended_by(lambda: calls.append("ended")):
        calls.append("inside")
    with pytest.raises(KeyError), ended_by(lambda: calls.append("ended")):
        raise KeyError
    assert calls == ["inside", "ended", "ended"]


def test_an_interrupt_of_the_action_is_not_held_back() -> None:
    def action() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), ended_by(action):
        raise KeyError
