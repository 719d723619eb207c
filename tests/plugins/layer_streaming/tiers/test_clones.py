"""Checkpoints of state on the disk: cloned where the file system can, and written otherwise."""

from __future__ import annotations

import gc
import json
import mmap
import os
import shutil
import struct
import subprocess
from errno import EXDEV
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import DEVICE
from torch import nn

from neaptide import HybridTrainer
from neaptide.checkpoint import verify
from neaptide_toolkit.offload.disk import Cloning
from neaptide_toolkit.offload.disk.cloning import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WIDTH, BLOCKS = 64, 4
CLONED = 3 * BLOCKS * 4 * WIDTH * WIDTH
"""Bytes of weights and AdamW's state that are whole blocks: not those of biases."""


def trainer_of(folder: Path | None, run: Path, width: int = WIDTH, **others: Any) -> HybridTrainer:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(BLOCKS)]
    model = nn.Sequential(nn.Linear(width, width), *blocks)
    tier = {} if folder is None else {"tier": "disk", "path": str(folder), "ram_gib": 0.0}
    plugins = {"layer-streaming": {"update": "in_backward", **tier}, **others}
    config = {"run": {"dir": str(run), "progress": "quiet"}, "plugins": plugins}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loss: Any = lambda net, batch: net(batch).square().mean()  # noqa: E731 - short
    return HybridTrainer(model, optimizer, loss_fn=loss, config=config)


def batches(width: int = WIDTH) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return list(torch.randn(6, 8, width, generator=generator).to(DEVICE))


def files(directory: Path) -> dict[str, bytes]:
    """Return the files of a checkpoint that do not tell where the state was."""
    names = {"config.json", "manifest.json"}
    return {one.name: one.read_bytes() for one in directory.iterdir() if one.name not in names}


def trained(tier: Path | None, run: Path, saved: Path, **others: Any) -> tuple[list[int], str]:
    """Train and save after updates 2 and 4; return the bytes that were cloned, and the digest."""
    with trainer_of(tier, run, **others) as trainer:
        for number, batch in enumerate(batches(), start=1):
            trainer.step(batch)
            if number in {2, 4}:
                trainer.save(saved / str(number))
        digest = trainer.digest()
    lines = map(json.loads, (run / "events.jsonl").read_text("utf-8").splitlines())
    return [one["bytes"] for one in lines if one["event"] == "streaming.cloned"], digest


def same_checkpoints(one: Path, other: Path) -> None:
    for number in ("2", "4"):
        assert verify(one / number) == []
        assert files(one / number) == files(other / number)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let a clone copy, as on a file system that has clones; return the bytes of each."""
    cloned = []

    def clone(number: int, request: int, ranges: bytes) -> None:
        assert request == 0x4020940D
        source, offset, count, at = struct.unpack("=qQQQ", ranges)
        assert [0, 0, 0] == [one % 4096 for one in (offset, count, at)]
        pages = mmap.mmap(-1, count)
        assert count == os.preadv(source, [pages], offset)
        assert count == os.pwritev(number, [pages], at)
        cloned.append(count)

    monkeypatch.setattr(fcntl, "ioctl", clone)
    return cloned


def test_whole_blocks_are_cloned_and_the_rest_is_written(tmp_path: Path, copied: list[int]) -> None:
    for name in ("tier", "here", "there"):
        (tmp_path / name).mkdir()
    cloned, digest = trained(tmp_path / "tier", tmp_path / "run", tmp_path / "here")
    assert [CLONED, CLONED] == cloned
    assert 2 * CLONED == sum(copied)
    none, expected = trained(None, tmp_path / "other", tmp_path / "there")
    assert ([], expected) == (none, digest)
    same_checkpoints(tmp_path / "here", tmp_path / "there")


def refused(*_: object) -> None:
    raise OSError(EXDEV, os.strerror(EXDEV))


@pytest.mark.parametrize("why", ["refused", "no room"])
def test_what_cannot_be_cloned_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: list[int], why: str
) -> None:
    if why == "refused":
        monkeypatch.setattr(fcntl, "ioctl", refused)
    else:
        monkeypatch.setattr(Cloning, "has_room", lambda *_: False)
    for name in ("tier", "here", "there"):
        (tmp_path / name).mkdir()
    assert [] == trained(tmp_path / "tier", tmp_path / "run", tmp_path / "here")[0]
    assert [] == copied
    trained(None, tmp_path / "other", tmp_path / "there")
    same_checkpoints(tmp_path / "here", tmp_path / "there")


def test_a_save_in_the_background_copies(tmp_path: Path, copied: list[int]) -> None:
    (tmp_path / "tier").mkdir()
    with trainer_of(tmp_path / "tier", tmp_path / "run", **{"background-save": {}}) as trainer:
        trainer.step(batches()[0])
        trainer.save(tmp_path / "run" / "checkpoints" / "step-00000001")
    assert verify(tmp_path / "run" / "checkpoints" / "step-00000001") == []
    assert [] == copied


@pytest.fixture
def xfs(tmp_path: Path) -> Iterator[Path]:
    """Mount a new XFS, which has clones."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("mkfs.xfs", "mount", "umount"))):
        pytest.skip("mounting an XFS needs root and xfsprogs")
    image, place = tmp_path / "image", tmp_path / "xfs"
    with image.open("wb") as file:
        file.truncate(400 << 20)
    place.mkdir()
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", str(image)], check=True)
    mounted = subprocess.run(
        ["mount", "-o", "loop", str(image), str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no XFS can be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        gc.collect()  # a tier file is open as long as a tensor views it
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def used(place: Path) -> int:
    """Return the bytes of the file system that are taken."""
    os.sync()
    found = os.statvfs(place)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


@pytest.mark.slow
def test_xfs_shares_the_blocks_until_training_writes_again(xfs: Path, tmp_path: Path) -> None:
    width = 768
    state = 3 * BLOCKS * 4 * width * width
    for name in ("tier", "saved"):
        (xfs / name).mkdir()
    with trainer_of(xfs / "tier", tmp_path / "run", width) as trainer:
        for number, batch in enumerate(batches(width), start=1):
            trainer.step(batch)
            if number == 3:
                before = used(xfs)
                trainer.save(xfs / "saved" / "3")
                assert used(xfs) - before < state // 2  # what is in RAM, and no block
                expected_then = trainer.digest()
        assert used(xfs) - before > state  # the tier has other blocks now
        expected = trainer.digest()
    assert '"streaming.cloned"' in (tmp_path / "run" / "events.jsonl").read_text("utf-8")
    assert verify(xfs / "saved" / "3") == []
    for tier in (xfs / "tier", None):
        with trainer_of(tier, tmp_path / "again", width) as trainer:
            trainer.load(xfs / "saved" / "3", allow_changes=True)
            assert expected_then == trainer.digest()
            for batch in batches(width)[3:]:
                trainer.step(batch)
            assert expected == trainer.digest()


def fill(place: Path) -> None:
    """Take all room of a file system."""
    with (place / "rest").open("wb") as file:
        size, at = 1 << 28, 0
        while size >= 4096:
            try:
                os.posix_fallocate(file.fileno(), at, size)
                at += size
            except OSError:
                size //= 2


@pytest.mark.slow
def test_a_disk_that_is_full_after_a_clone_costs_ram_and_no_bit(xfs: Path, tmp_path: Path) -> None:
    width, found = 768, []
    for name in ("tier", "saved"):
        (xfs / name).mkdir()
    for full in (False, True):
        with trainer_of(xfs / "tier", tmp_path / "run", width) as trainer:
            for number, batch in enumerate(batches(width), start=1):
                trainer.step(batch)
                if number == 3:
                    trainer.save(xfs / "saved" / "3")
                    if full:
                        fill(xfs)
            found.append(trainer.digest())
        del trainer
        gc.collect()
    assert found[0] == found[1]
    events = (tmp_path / "run" / "events.jsonl").read_text("utf-8")
    assert '"streaming.cloned"' in events
    assert '"streaming.disk_refused"' in events
    assert "No space left on device" in events
    assert verify(xfs / "saved" / "3") == []
