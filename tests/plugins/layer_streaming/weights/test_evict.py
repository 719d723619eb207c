"""Streamed weights that nobody computes with for a while are not fetched."""

from __future__ import annotations

import pytest
import torch

from neaptide import HybridTrainer
from neaptide_toolkit.testing.tiny import tiny_loss, tiny_task


@pytest.mark.parametrize("resident", [0, 2])
@pytest.mark.parametrize("mode", ["recompute", "graph"])
def test_what_was_written_meanwhile_is_what_is_computed_with(mode: str, resident: int) -> None:
    def trained(*, evicted: bool) -> dict[str, torch.Tensor]:
        task = tiny_task(steps=6)
        streaming = {"layer-streaming": {"mode": mode, "resident": resident}}
        config = {"plugins": streaming}
        with HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, config=config) as trainer:
            store = trainer.store
            for batch in task.batches:
                trainer.step(batch)
                spans = [span for span in store.spans() if span.name.endswith("weight")]
                back = store.evict(spans if evicted else [])
                for span in spans:
                    with store.loan(span, "write") as weight:
                        weight.mul_(0.99)
                back()
        return task.model.state_dict()

    expected, actual = trained(evicted=False), trained(evicted=True)
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


def test_a_kept_block_gives_up_its_place_and_takes_it_again() -> None:
    task = tiny_task(steps=2)
    config = {"plugins": {"layer-streaming": {"resident": 4}}}
    with HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, config=config) as trainer:
        trainer.step(task.batches[0])
        streaming = trainer.store.streaming
        before = len(streaming.residency.buffers())
        back = trainer.store.evict(
            [span for span in trainer.store.spans() if span.name.startswith("blocks.1.")]
        )
        assert before - 1 == len(streaming.residency.buffers())
        back()
        assert before == len(streaming.residency.buffers())
