"""A load reads one tensor at a time: it takes little memory beyond the weights and their state."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from neaptide import HybridTrainer
from neaptide.checkpoint import load, verify
from neaptide.checkpoint.safetensors_stream import PIECE
from neaptide.errors import CheckpointError

WIDTH = 2048
MIB = 2**20
module = sys.modules["neaptide.checkpoint.verify"]
"""The package has a function of this name."""


def square(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def trained(steps: int = 1, dtype: torch.dtype = torch.float32) -> HybridTrainer:
    """Return a trainer of 16 MiB a weight, and 112 MiB of weights and state in float32."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH // 3)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    trainer = HybridTrainer(model, optimizer, loss_fn=square)
    for _ in range(steps):
        trainer.step(torch.ones(2, WIDTH, dtype=dtype))
    return trainer


def resident() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux says it so")
def test_a_load_takes_little_memory_beyond_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with trained() as saver:
        saver.save(tmp_path / "c")
    peak, read = [0], os.preadv

    def seen(*given: Any) -> int:
        peak[0] = max(peak[0], resident())
        return read(*given)

    with trained() as trainer:
        before = resident()
        monkeypatch.setattr(os, "preadv", seen)
        trainer.load(tmp_path / "c")
    assert 0 < peak[0]
    assert peak[0] - before < 2 * PIECE + 16 * MIB


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_that_is_read_late_has_its_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    with trained(2, dtype) as saver:
        saver.save(tmp_path / "c")
        expected = saver.digest()
    with trained(0, dtype) as trainer:
        trainer.load(tmp_path / "c")
        assert expected == trainer.digest()


def test_state_of_parameters_that_are_not_of_the_model_is_read(tmp_path: Path) -> None:
    def with_another() -> tuple[HybridTrainer, nn.Parameter]:
        model, other = nn.Linear(2, 2), nn.Parameter(torch.ones(200, 200))
        optimizer = torch.optim.AdamW([*model.parameters(), other])
        loss = lambda net, batch: net(batch).sum() + other.square().sum()  # noqa: E731 - short
        return HybridTrainer(model, optimizer, loss_fn=loss), other

    saver, other = with_another()
    with saver:
        saver.step(torch.ones(1, 2))
        expected = saver.optimizer.state[other]["exp_avg"].clone()
        saver.save(tmp_path / "c")
    trainer, other = with_another()
    with trainer:
        trainer.load(tmp_path / "c")
        assert expected.any()
        assert torch.equal(expected, trainer.optimizer.state[other]["exp_avg"])


def test_a_file_that_changes_soon_after_it_was_read_is_read_again(tmp_path: Path) -> None:
    with trained(0) as saver:
        saver.save(tmp_path / "c")
    file = tmp_path / "c" / "weights.safetensors"
    assert verify(tmp_path / "c") == []
    before = file.stat()
    with file.open("r+b") as opened:
        opened.seek(-1, os.SEEK_END)
        last = opened.read(1)
        opened.seek(-1, os.SEEK_END)
        opened.write(bytes([last[0] ^ 1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "weights.safetensors: damaged" in verify(tmp_path / "c")[0]
    with pytest.raises(CheckpointError, match="damaged"):
        load(tmp_path / "c")


def test_a_file_that_rests_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with trained(0) as saver:
        saver.save(tmp_path / "c")
    now, read = time.time_ns(), []
    digest = module._sha256
    monkeypatch.setattr(module, "_sha256", lambda *of: read.append(of) or digest(*of))
    assert verify(tmp_path / "c") == []
    assert verify(tmp_path / "c") == []
    files = len([*(tmp_path / "c").iterdir()]) - 1
    assert 2 * files == len(read)
    monkeypatch.setattr(time, "time_ns", lambda: now + 5 * 10**9)
    assert verify(tmp_path / "c") == []
    assert verify(tmp_path / "c") == []
    assert 3 * files == len(read)
