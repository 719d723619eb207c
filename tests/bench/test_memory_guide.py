"""The memory guide: its formulas say what ledgers state, and what cannot run is named."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

BENCH = Path(__file__).parents[2] / "bench"
STACKS = [
    ("optimizer-offload", "int8"),
    ("layer-streaming",),
    ("optimizer-offload", "int8", "layer-streaming"),
]


@pytest.fixture
def guide(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCH))
    import memory_guide

    yield memory_guide
    for name in ("memory_guide", "memory_run.formula", "memory_run.run"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("plugins", STACKS, ids="+".join)
def test_the_formula_is_what_the_ledger_states(guide: Any, plugins: tuple[str, ...]) -> None:
    size = guide.Size(layers=3, width=128, heads=2, context=16, batch=1)
    rows = {row["phase"]: row for row in guide.measured(size, {name: {} for name in plugins})}
    blocks = size.layers * 12 * size.width**2
    rest = rows["full"]["parameters"] - blocks
    model = guide.Decoder(layers=size.layers, width=size.width, rest=rest)
    moments = {"train": ("forward", "backward", "update"), "predict": ("predict",)}
    for kind, (device, host) in guide.computed(model, plugins, on_gpu=False).items():
        ledger = rows["correct" if kind == "train" else kind]["ledger"]
        for tier, expected in (("device", device), ("host", host)):
            stated = max(ledger[moment][tier] for moment in moments[kind])
            assert stated == pytest.approx(expected, rel=0.05), (kind, tier)


def test_a_stack_that_cannot_run_is_named(guide: Any, capsys: pytest.CaptureFixture[str]) -> None:
    stacks = {"here": {"ema": {}}, "elsewhere": {"ema": {}, "not-there": {}}}
    assert [("here", {"ema": {}})] == list(guide._runnable(stacks))
    assert "elsewhere is left out: not-there is not installed\n" == capsys.readouterr().err


@pytest.mark.slow
def test_the_guide_prints_a_row_a_phase_and_writes_them(
    guide: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "guide.json"
    monkeypatch.setattr(sys, "argv", ["memory_guide.py", "--size", "toy", "--json", str(path)])
    threads = torch.get_num_threads()
    try:
        guide.main()
    finally:
        torch.set_num_threads(threads)
    printed, report = capsys.readouterr().out, json.loads(path.read_text())
    phases = [row["phase"] for row in report["rows"] if row["stack"] == "none"]
    assert ["warmup", "full", "predict", "correct"] == phases
    for row in report["rows"]:
        assert f"| toy | {row['stack']} | {row['phase']} |" in printed
        assert row["allocated_peak"] > 0
    assert {"124M", "1B", "7B", "50B"} == {row["size"] for row in report["computed"]}
