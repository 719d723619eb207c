"""The bench of updates in RAM has the bytes of each, and times beside a copy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from measuring import measured

if TYPE_CHECKING:
    from pathlib import Path

SMALL = ("--matrices", "2", "--side", "64", "--rounds", "2", "--threads", "1")
BYTES = {
    ("AdamW of torch, fused", "float32"): 28,
    ("AdamW, split masters, as torch's fused", "bfloat16"): 26,
    ("AdamW, split masters, as torch's for-loop", "bfloat16"): 26,
    ("adam8bit", "float32"): 16.06,
    ("adam8bit", "bfloat16"): 10.06,
    ("lion8bit", "float32"): 14.03,
    ("lion8bit", "bfloat16"): 8.03,
    ("lion", "float32"): 20,
    ("lion", "bfloat16"): 10,
    ("torchao AdamW8bit", "float32"): 16.06,
    ("torchao AdamW8bit", "bfloat16"): 10.06,
}
THERE = """
import torch

class AdamW8bit(torch.optim.AdamW):
    def __init__(self, params, lr, bf16_stochastic_round=False):
        super().__init__(params, lr=lr)
"""


def test_the_bench_counts_bytes_and_leaves_out_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package, module, text in (
        ("torchao", "optim", THERE),
        ("bitsandbytes", "optim", "raise OSError('no library')"),
        ("deepspeed", "nothing", ""),
    ):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / package / f"{module}.py").write_text(text)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)

    written, told, _ = measured("plugins/host_steps.py", tmp_path, *SMALL)

    assert (2 * 64 * 64, 1) == (written["parameters"], written["threads"])
    rows = {(row["update"], row["weights"]): row for row in written["rows"]}
    assert BYTES == {key: row["bytes"] for key, row in rows.items()}
    for row in rows.values():
        for ms, copy, rate, share in zip(
            row["ms"], row["copy_ms"], row["gb_per_s"], row["share"], strict=True
        ):
            assert rate == pytest.approx(row["bytes"] * 2 * 64 * 64 / ms / 1e6, rel=1e-2)
            assert share == pytest.approx(row["bytes"] / 28 * copy / ms, rel=1e-2)
    left_out = [line for line in told.splitlines() if line.startswith("left out: ")]
    assert left_out == [
        "left out: deepspeed cannot be used (ModuleNotFoundError: No module named 'deepspeed.ops')",
        "left out: bitsandbytes cannot be used (OSError: no library)",
    ]
