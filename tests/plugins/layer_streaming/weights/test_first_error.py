"""An error inside a streamed block is the one that is told, also if its slot then fails."""

from __future__ import annotations

from typing import Any

import pytest

from neaptide import HybridTrainer
from neaptide_toolkit.testing.tiny import tiny_loss, tiny_task


def test_the_error_of_a_block_is_told_with_that_of_its_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = ValueError("mine"), OSError("the copy failed")
    task = tiny_task(steps=1)
    config = {"plugins": {"layer-streaming": {}}}
    with HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, config=config) as trainer:
        residency = trainer.store.streaming.residency
        block = trainer.store.streaming.blocks[0]

        released = residency._release

        def release(needed: Any) -> None:
            released(needed)
            raise second

        with monkeypatch.context() as patched:
            patched.setattr(residency, "_release", release)
            with pytest.raises(ValueError, match="mine"):
                _fail_inside(residency.use(block, "forward"), first)
        assert first.__notes__ == ["after this error: OSError: the copy failed"]


def _fail_inside(context: Any, error: Exception) -> None:
    with context:
        raise error
