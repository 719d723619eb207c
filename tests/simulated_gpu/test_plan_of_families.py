"""A plan for a GPU is near for models that compute otherwise on CUDA than on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
CASES = [
    ("transformer encoder, 4 x 128", "none"),  # dropout, and attention with dropout
    ("bert", "none"),
    ("t5", "activation-checkpointing"),  # a mask with a gradient
    ("llama", "mixed-precision"),  # autocast
    ("qwen2", "none"),  # groups of queries
    ("mixtral", "streaming, optimizer on the CPU"),  # experts that choose rows by a mask
]


@pytest.mark.parametrize(("model", "stack"), CASES)
def test_the_peak_is_within_5_percent(
    model: str, stack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCH)
    from plan import compared  # bench/ is no package

    found = compared(model, stack, "cuda")
    assert "failed" not in found
    assert found["ratios"]["tensors"] == pytest.approx(1, abs=0.05)
