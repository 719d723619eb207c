"""Training with weights and state on a disk: the resident run's bits, resumed and told."""

from __future__ import annotations

import errno
import gc
import os
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from streamed_from_disk import HOMES, WAYS, batches, dtype_of, on_disk, train, trainer_of
from support import DEVICE

from neaptide import ConfigError, DoesNotFitError
from neaptide_toolkit.offload.disk import DiskError, disk_bytes
from neaptide_toolkit.offload.disk.tier_file import regions
from neaptide_toolkit.testing.parting import same_bits


class Failing:
    """`os.pwritev` or `os.preadv`, of which one call fails."""

    def __init__(self, code: int, whole: Any = os.pwritev) -> None:
        self._code, self._whole = code, whole
        self.fail(0)

    def fail(self, number: int) -> None:
        self._number, self.calls, self._lock = number, 0, Lock()

    def __call__(self, number: int, parts: Any, offset: int) -> int:
        with self._lock:  # several threads call
            self.calls += 1
            fails = self.calls == self._number
        if fails:
            raise OSError(self._code, os.strerror(self._code))
        return self._whole(number, parts, offset)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ram", [0, HOMES // 2, 2 * HOMES])
def test_weights_are_those_of_a_run_in_ram(way: str, ram: int, tmp_path: Path) -> None:
    dtype, found = dtype_of(way), []
    in_ram = WAYS[way] | ({"optimizer_on": "device"} if "update" not in WAYS[way] else {})
    in_ram |= {"inputs": "host"} if in_ram.get("inputs") == "disk" else {}
    for settings in (in_ram, on_disk(way, tmp_path, ram_gib=ram / 2**30)):
        with trainer_of(settings, dtype) as trainer:
            for batch in batches(dtype):
                trainer.step(batch)
            found.append((trainer.digest(), disk_bytes()))
    (expected, _), (digest, held) = found
    assert expected == digest
    assert held > 0
    assert [] == list(tmp_path.iterdir())


def test_weights_are_in_ram_before_state(tmp_path: Path) -> None:
    held = []
    gc.collect()
    before = disk_bytes()
    for ram in (0, HOMES // 2, HOMES, 2 * HOMES, 3 * HOMES):
        # A little more, for the gaps between tensors.
        settings = on_disk("in backward", tmp_path, ram_gib=1.05 * ram / 2**30)
        with trainer_of(settings) as trainer:
            trainer.step(batches()[0])
            held.append((disk_bytes() - before) / HOMES)
        del trainer
        gc.collect()
        assert before == disk_bytes()
    assert [3.0, 2.5, 2.0, 1.0, 0.0] == pytest.approx(held, abs=0.05)


@pytest.mark.parametrize("way", WAYS)
def test_what_follows_a_resume_is_what_would_have_followed(way: str, tmp_path: Path) -> None:
    dtype = dtype_of(way)
    folder = tmp_path / "disk"
    folder.mkdir()
    with trainer_of(on_disk(way, folder), dtype) as trainer:
        for number, batch in enumerate(batches(dtype), start=1):
            trainer.step(batch)
            if number == 4:
                trainer.save(tmp_path / "middle")
        expected = trainer.digest()
    # A checkpoint does not depend on where the state was.
    for settings in (on_disk(way, folder), on_disk(way, folder, ram_gib=1.0)):
        with trainer_of(settings, dtype) as again:
            again.step(batches(dtype)[0])
            again.load(tmp_path / "middle", allow_changes=True)
            for batch in batches(dtype)[4:]:
                again.step(batch)
            assert expected == again.digest()


def test_what_the_user_does_to_weights_counts(tmp_path: Path) -> None:
    found = []
    for settings in ({"update": "in_backward"}, on_disk("in backward", tmp_path)):
        with trainer_of(settings) as trainer:
            for batch in batches():
                trainer.step(batch)
                with torch.no_grad():
                    trainer.model[2].layer.weight.mul_(0.9)
                    trainer.optimizer.state[trainer.model[3].layer.weight]["exp_avg"].mul_(0.5)
            found.append({name: one.clone() for name, one in trainer.model.state_dict().items()})
    one, other = found
    assert [] == [name for name in one if not same_bits(one[name], other[name])]


def test_several_disks_share_the_work(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    settings = on_disk("in backward", tmp_path, path=[str(folder) for folder in folders])
    with trainer_of(settings) as trainer:
        trainer.step(batches()[0])
        sizes = Counter[Path]()
        for region in regions():
            sizes[region.file.folder] += region.size
    assert sizes[folders[0]] == sizes[folders[1]] > 0


def test_a_directory_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    for other in (tmp_path, tmp_path / "link"):
        settings = on_disk("in backward", tmp_path, path=[str(tmp_path), str(other)])
        with pytest.raises(ConfigError, match=r"path names one directory twice: .*; remove one @"):
            trainer_of(settings)


def test_directories_of_one_disk_need_room_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    free = SimpleNamespace(free=2 * HOMES)  # of 3
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    settings = on_disk("in backward", tmp_path, path=[str(folder) for folder in folders])
    with pytest.raises(ConfigError, match=r"needs .* in '.*/a' and '.*/b', of which .* is free"):
        trainer_of(settings)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_write_that_the_disk_refuses_is_told_and_training_goes_on(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, refused = os.pwritev, []

    def refusing(number: int, parts: Any, offset: int) -> int:
        if len(refused) < 3:
            refused.append(offset)
            raise OSError(code, os.strerror(code))
        return whole(number, parts, offset)

    with trainer_of({"update": "in_backward"}) as trainer:
        for batch in batches():
            trainer.step(batch)
        expected = trainer.digest()
    with trainer_of(on_disk("in backward", tmp_path)) as trainer:
        for number, batch in enumerate(batches()):
            if number == 3:
                monkeypatch.setattr(os, "pwritev", refusing)
            trainer.step(batch)
        assert expected == trainer.digest()
    assert len(refused) == 3


@pytest.mark.parametrize("way", ["in backward", "inputs on the disk"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_any_write_may_fail_once(
    code: int, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest() -> str:
        with trainer_of(on_disk(way, tmp_path)) as trainer:
            for batch in batches()[:3]:
                trainer.step(batch)
            return trainer.digest()

    disk = Failing(code)
    monkeypatch.setattr(os, "pwritev", disk)
    expected, made = digest(), disk.calls
    assert made > 12
    for number in range(1, made + 1):
        disk.fail(number)
        assert expected == digest(), number
        assert disk.calls >= number


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_without_room_in_ram_any_write_that_fails_is_a_line(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Failing(code)
    monkeypatch.setattr(os, "pwritev", disk)
    monkeypatch.setattr("neaptide_toolkit.offload.disk.tier_file._LEFT", 2**62)
    for number in range(1, 12):
        disk.fail(number)
        trainer = trainer_of(on_disk("in backward", tmp_path))
        with pytest.raises(DiskError, match=r"cannot write \d+ bytes in .*; ") as told:
            train(trainer)
        assert "\n" not in str(told.value)
        with suppress(DiskError):  # nobody may have waited for the write
            trainer.close()


def test_a_write_of_the_last_update_that_fails_is_in_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Failing(errno.EIO)
    monkeypatch.setattr(os, "pwritev", disk)
    monkeypatch.setattr("neaptide_toolkit.offload.disk.tier_file._LEFT", 2**62)
    folder = tmp_path / "disk"
    folder.mkdir()

    def run(where: Path) -> None:
        trainer = trainer_of(on_disk("in backward", folder))
        train(trainer)
        trainer.save(where)
        trainer.close()

    run(tmp_path / "sound")
    made = disk.calls
    # The last update writes weights and state of four blocks.
    for number in range(made - 7, made + 1):
        disk.fail(number)
        with pytest.raises(DiskError, match="cannot write"):
            run(tmp_path / "last")
        gc.collect()  # errors hold trainers, and these hold files
        assert not (tmp_path / "last").exists(), number


def test_any_read_that_the_disk_refuses_ends_the_run_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        with trainer_of(on_disk("in backward", tmp_path)) as trainer:
            for batch in batches()[:2]:
                trainer.step(batch)

    disk = Failing(errno.EIO, os.preadv)
    monkeypatch.setattr(os, "preadv", disk)
    run()
    made = disk.calls
    assert made > 12
    for number in range(1, made + 1):
        disk.fail(number)
        with pytest.raises(DiskError) as told:
            run()
        assert re.fullmatch(r"cannot read \d+ bytes in .*: Input/output error; .*", str(told.value))


def test_more_in_ram_than_there_is_is_refused(tmp_path: Path) -> None:
    # What must be in RAM is less, with the state it is more. On a CPU the slots are in RAM, too.
    limit = (110_000 if DEVICE.type == "cpu" else 50_000) / 2**30
    with trainer_of(on_disk("in backward", tmp_path, host_gib=limit)) as trainer:
        trainer.step(batches()[0])
    with pytest.raises(DoesNotFitError, match=r"weights and optimizer state \d+") as refused:
        trainer_of(on_disk("in backward", tmp_path, host_gib=limit, ram_gib=1.0))
    assert "\n" not in str(refused.value)
