"""background-save: the checkpoints of a run are those of a save at once, and training goes on."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from neaptide import ConfigError, HybridTrainer
from neaptide.api.steps import STOP
from neaptide.checkpoint import checkpoints, load, save, verify, writing
from neaptide.checkpoint.safetensors_stream import PIECE
from neaptide.errors import CheckpointError, DataError
from neaptide.run.signals import Interrupted
from neaptide_plugins.background_save.writing import BackgroundWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BATCHES = [torch.full((2, 8), float(number)) for number in range(1, 5)]


def trained(
    folder: Path,
    plugins: dict[str, Any],
    each: Callable[[Any], None] | None = None,
    data: Any = BATCHES,
    **run: Any,
) -> tuple[list[Path], str]:
    """Train eight updates and save every second one; return the checkpoints and the digest."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 1))
    config = {
        "train": {"steps": 8},
        "run": {"dir": str(folder), "checkpoint_every": 2, "keep": 0, "progress": "quiet", **run},
        "plugins": plugins,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loss: Any = lambda net, batch: net(batch).square().mean()  # noqa: E731 - short
    with HybridTrainer(model, optimizer, loss_fn=loss, config=config) as trainer:
        trainer.fit(data, observe=lambda *_: each(trainer) if each else None)
        digest = trainer.digest()
    return checkpoints(folder / "checkpoints"), digest


def files(directory: Path) -> dict[str, bytes]:
    """Return the data files of a checkpoint, without what names the plugins."""
    names = {"config.json", "plugins.json", "manifest.json"}
    return {one.name: one.read_bytes() for one in directory.iterdir() if one.name not in names}


def test_the_checkpoints_are_those_of_a_save_at_once(tmp_path: Path) -> None:
    now, digest = trained(tmp_path / "now", {})
    later, other = trained(tmp_path / "later", {"background-save": {}})
    assert [2, 4, 6, 8] == [int(one.name.removeprefix("step-")) for one in later]
    assert digest == other
    for first, second in zip(now, later, strict=True):
        assert verify(second) == []
        assert files(first) == files(second)


def test_training_goes_on_while_the_disk_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped, sync, seen = threading.Event(), os.fsync, []

    def slow(descriptor: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert stopped.wait(60)
        sync(descriptor)

    def each(trainer: Any) -> None:
        if trainer.state.step == 3:  # the save after update 2 is not complete
            seen.extend(checkpoints(tmp_path / "run" / "checkpoints"))
            stopped.set()

    monkeypatch.setattr(os, "fsync", slow)
    found, _ = trained(tmp_path / "run", {"background-save": {}}, each)
    assert [] == seen
    assert 4 == len(found)


def test_a_failed_save_is_told_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, sync = [False], os.fsync

    def failing(descriptor: int) -> None:
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    def each(trainer: Any) -> None:
        if trainer.state.step in {4, 6}:  # the save before has ended
            trainer.hooks.plugins["background-save"]._writer._thread.join()
        full[0] = trainer.state.step in {4, 5}

    monkeypatch.setattr(os, "fsync", failing)
    found, _ = trained(tmp_path / "run", {"background-save": {}}, each)
    assert [2, 6, 8] == [int(one.name.removeprefix("step-")) for one in found]
    assert all(verify(one) == [] for one in found)
    events = (tmp_path / "run" / "events.jsonl").read_text("utf-8").splitlines()
    (told,) = [line for line in events if "checkpoint.failed" in line]
    assert "No space left on device; free space" in told


class Broken:
    """Data that raises an error at the fourth batch."""

    leaves_weights = True

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from BATCHES[:3]
        msg = "no such file"
        raise OSError(msg)


@pytest.mark.parametrize("why", ["a signal", "the data", "a plugin"])
def test_the_checkpoint_with_which_fit_ends_is_complete_at_once(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, threads = os.fsync, set()

    def noted(descriptor: int) -> None:
        threads.add(threading.current_thread())
        sync(descriptor)

    def each(trainer: Any) -> None:
        if trainer.state.step == 3 and why == "a signal":
            os.kill(os.getpid(), signal.SIGTERM)
        if trainer.state.step == 3 and why == "a plugin":
            trainer.run.stash.set(STOP, "it is good enough")

    monkeypatch.setattr(os, "fsync", noted)
    data = Broken() if why == "the data" else BATCHES
    with suppress(DataError, Interrupted):
        trained(tmp_path / "run", {"background-save": {}}, each, data, checkpoint_every=100)
    assert {threading.main_thread()} == threads
    (found,) = checkpoints(tmp_path / "run" / "checkpoints")
    assert "step-00000003" == found.name
    assert verify(found) == []


def test_old_checkpoints_are_deleted_once_the_new_one_is_complete(tmp_path: Path) -> None:
    found, _ = trained(tmp_path / "run", {"background-save": {}}, keep=2)
    assert [6, 8] == [int(one.name.removeprefix("step-")) for one in found]
    assert found == sorted((tmp_path / "run" / "checkpoints").iterdir())


def test_a_run_goes_on_from_a_checkpoint_that_was_written_later(tmp_path: Path) -> None:
    found, digest = trained(tmp_path / "run", {"background-save": {}})
    for directory in found[1:]:
        for one in directory.iterdir():
            one.unlink()
        directory.rmdir()
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 1))
    config = {
        "train": {"steps": 8},
        "run": {"dir": str(tmp_path / "run"), "checkpoint_every": 2, "progress": "quiet"},
        "plugins": {"background-save": {}},
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loss: Any = lambda net, batch: net(batch).square().mean()  # noqa: E731 - short
    with HybridTrainer(model, optimizer, loss_fn=loss, config=config) as trainer:
        trainer.fit(BATCHES, resume="auto")
        assert digest == trainer.digest()


def test_what_a_user_saves_is_there_at_once(tmp_path: Path) -> None:
    saved = []

    def each(trainer: Any) -> None:
        path = trainer.save(tmp_path / f"mine-{trainer.state.step}")
        saved.append(verify(path))

    trained(tmp_path / "run", {"background-save": {}}, each)
    assert 8 * [[]] == saved


def test_it_does_not_run_beside_what_copies_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="best-checkpoint"):
        trained(tmp_path, {"background-save": {}, "best-checkpoint": {}})


def written(directory: Path, writer: BackgroundWriter, tensor: torch.Tensor) -> None:
    """Save a tensor through `writer`."""
    from neaptide.checkpoint.files import WAY

    token = WAY.set(lambda _, context, fill: writer.write(context, fill))
    try:
        save(directory, {"a": {"x": tensor}, "b": {"y": [1, tensor[:3]]}}, 1, {})
    finally:
        WAY.reset(token)


@pytest.mark.parametrize("count", [0, 1, PIECE - 1, PIECE + 1, 5 * PIECE])
def test_two_buffers_hold_what_is_not_yet_written(tmp_path: Path, count: int) -> None:
    tensor = torch.arange(count, dtype=torch.int64).to(torch.uint8)
    writer = BackgroundWriter(1)
    written(tmp_path / "c", writer, tensor)
    tensor.zero_()
    assert writer.finish()
    assert not writer.finish()
    expected = torch.arange(count, dtype=torch.int64).to(torch.uint8)
    assert torch.equal(expected, load(tmp_path / "c").section("a")["x"])
    assert writer._free.qsize() == 2


def test_the_thread_begins_when_all_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, seen, copied = os.write, [], [False]

    def noted(descriptor: int, data: Any) -> int:
        seen.append(copied[0])
        return write(descriptor, data)

    def fill(files: Any) -> None:
        with files.file("one") as file:
            file.write(bytes(2 * PIECE))
            time.sleep(0.2)
            copied[0] = True

    monkeypatch.setattr(os, "write", noted)
    writer = BackgroundWriter(4 * PIECE)
    writer.write(writing(tmp_path / "c", 1, {}), fill)
    assert writer.finish()
    assert {True} == {*seen}


def test_an_error_of_what_is_saved_is_raised_by_the_save(tmp_path: Path) -> None:
    writer = BackgroundWriter(1)

    def fill(files: Any) -> None:
        with files.file("one") as file:
            file.write(b"1")
        msg = "no such state"
        raise KeyError(msg)

    with pytest.raises(KeyError, match="no such state"):
        writer.write(writing(tmp_path / "c", 1, {}), fill)
    assert [] == [*tmp_path.iterdir()]
    written(tmp_path / "c", writer, torch.ones(4))
    writer.finish()
    assert verify(tmp_path / "c") == []


def test_a_full_disk_ends_the_save_and_frees_its_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, main = os.write, threading.main_thread()

    def full(descriptor: int, data: Any) -> int:
        if threading.current_thread() is not main:
            time.sleep(0.01)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    writer = BackgroundWriter(1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        written(tmp_path / "c", writer, torch.ones(6 * PIECE, dtype=torch.uint8))
        with pytest.raises(CheckpointError, match="No space left on device"):
            writer.finish()
    assert [] == [*tmp_path.iterdir()]
    written(tmp_path / "c", writer, torch.ones(PIECE, dtype=torch.uint8))
    assert writer.finish()
    assert writer._free.qsize() == 2
