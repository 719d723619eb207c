"""Deltas of many jumps, applied in one pass."""

from __future__ import annotations

import pytest
import torch
from support import tiny_trainer

from neaptide import Update
from neaptide.loop.guard import apply
from neaptide_kernels.apply_delta import apply_delta
from neaptide_kernels.int8 import dequantize_int8, quantize_int8
from neaptide_toolkit.predictors.deltas import Deltas
from neaptide_toolkit.predictors.held_tensors import Storage, WindowOps
from neaptide_toolkit.testing.parting import same_bits

STORAGE = Storage(WindowOps(quantize_int8, dequantize_int8, apply_delta), torch.device("cpu"))
BOUND = {"float32": 0.0, "bfloat16": 0.02, "int8": 0.08}
"""Norm of the error, as a share of the sum's."""


@pytest.mark.parametrize("state", BOUND)
def test_fifty_jumps_are_one_pass_over_the_weights(state: str) -> None:
    trainer, *_ = tiny_trainer()
    generator = torch.Generator().manual_seed(0)
    with trainer:
        spans = [span for span in trainer.store.spans() if span.trainable]
        sums = {span.name: torch.zeros(span.shape) for span in spans}
        deltas = Deltas(STORAGE, state)  # type: ignore[arg-type]
        for jump in range(50):
            for span in spans:
                delta = torch.randn(span.shape, generator=generator) * 1e-3
                sums[span.name] += delta
                deltas.add(span.name, delta, jump)
        writes: list[str] = []
        trainer.store.on_write(lambda span: writes.append(span.name))
        before = trainer.store.snapshot().weights
        apply(trainer.store, Update(50, lambda span: deltas.total(span.name, 1.0)), 1.0)
        after = trainer.store.snapshot().weights
    assert sorted(sums) == sorted(writes)
    for name, total in sums.items():
        if state == "float32":
            assert same_bits(before[name] + total, after[name])
        else:
            found = after[name] - before[name]
            assert (found - total).norm() <= BOUND[state] * total.norm() + 1e-6


@pytest.mark.parametrize("state", BOUND)
def test_they_are_saved_and_cleared(state: str) -> None:
    deltas = Deltas(STORAGE, state)  # type: ignore[arg-type]
    deltas.add("w", torch.randn(300), 0)
    deltas.count, deltas.horizon = 1, 7
    loaded = Deltas(STORAGE, state)  # type: ignore[arg-type]
    loaded.load_state_dict(deltas.state_dict())
    assert (1, 7) == (loaded.count, loaded.horizon)
    kept = loaded.total("w", 0.5)
    assert kept is not None
    assert same_bits(deltas.sums["w"].whole(torch.device("cpu")) * 0.5, kept)
    loaded.clear()
    assert (0, 0) == (loaded.count, loaded.horizon)
    assert not loaded.sums["w"].whole(torch.device("cpu")).any()
    assert loaded.total("unknown", 1.0) is None
