"""Damage to a checkpoint, in any file and of any kind, is found before anything is loaded."""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import TYPE_CHECKING

import pytest
import torch

from neaptide.checkpoint import load, newest_valid, read_manifest, save, verify
from neaptide.checkpoint.verify import opened
from neaptide.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

FILES = ("manifest.json", "model.json", "model.safetensors", "rng.json")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    tensors = {"weight": torch.randn(40, 10), "steps": torch.arange(50), "mask": torch.eye(7) > 0}
    sections = {"model": tensors, "rng": {"python": [3, [1, 2, 3], None]}}
    facts = {"phase": "predict", "plugins": {"ema": 1}, "config": "0f" * 32, "loss": 1.5}
    save(tmp_path / "step-00000400", sections, 400, facts)
    return tmp_path / "step-00000400"


def refused(directory: Path, why: str) -> None:
    problems = verify(directory)
    assert any(re.search(why, problem) for problem in problems), problems
    with pytest.raises(CheckpointError, match=why):
        load(directory)


def test_undamaged(checkpoint: Path) -> None:
    assert [] == verify(checkpoint)


@pytest.mark.parametrize("name", FILES)
def test_truncated_anywhere(checkpoint: Path, name: str) -> None:
    path = checkpoint / name
    whole = path.read_bytes()
    for length in {len(whole) * part // 200 for part in range(200)}:
        path.write_bytes(whole[:length])
        assert verify(checkpoint), length
    path.write_bytes(whole + b"\0")
    assert verify(checkpoint)
    path.write_bytes(whole)
    assert [] == verify(checkpoint)


def test_a_manifest_that_lost_its_last_byte(checkpoint: Path) -> None:
    earlier = checkpoint.with_name("step-00000300")
    save(earlier, {}, 300, {})
    path = checkpoint / "manifest.json"
    whole = path.read_bytes()
    why = "not byte for byte what was written"
    for text in (whole.removesuffix(b"\n"), whole[:-1] + b" ", whole + b"\n", b" " + whole):
        path.write_bytes(text)
        refused(checkpoint, why)
        newest, warnings = newest_valid(checkpoint.parent)
        assert (earlier, 1) == (newest, len(warnings))
        assert why in warnings[0]


def test_a_flipped_bit_in_every_byte_of_the_manifest(checkpoint: Path) -> None:
    path = checkpoint / "manifest.json"
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(flipped(whole, position, position % 8))
        with pytest.raises(CheckpointError):
            read_manifest(checkpoint)


@pytest.mark.parametrize("name", FILES[1:])
def test_a_flipped_bit_in_a_data_file(checkpoint: Path, name: str) -> None:
    path = checkpoint / name
    whole = path.read_bytes()
    for position in range(0, len(whole), max(1, len(whole) // 100)):
        path.write_bytes(flipped(whole, position, position % 8))
        assert [f"{path}: damaged, its sha256 does not match"] == verify(checkpoint)


def flipped(data: bytes, position: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << bit
    return bytes(changed)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", 401),
        ("format", 2),
        ("neaptide", "99"),
        ("facts", {}),
        ("files", {}),
        ("sha256", "0" * 64),
        ("sha256", None),
    ],
)
def test_an_edited_manifest(checkpoint: Path, key: str, value: object) -> None:
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    (checkpoint / "manifest.json").write_text(json.dumps(manifest | {key: value}))

    refused(checkpoint, "manifest.json: damaged")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink()

    refused(checkpoint, rf"{name}: No such file|{name!r} is missing")


@pytest.mark.parametrize("name", FILES)
def test_a_copy_beside_it(checkpoint: Path, name: str) -> None:
    shutil.copy(checkpoint / name, checkpoint / f"copy-{name}")

    refused(checkpoint, f"'copy-{name}' is not in the manifest")


def test_files_swapped(checkpoint: Path) -> None:
    (checkpoint / "model.json").rename(checkpoint / "x")
    (checkpoint / "rng.json").rename(checkpoint / "model.json")
    (checkpoint / "x").rename(checkpoint / "rng.json")

    refused(checkpoint, "model.json: .* bytes, should be")


def test_one_file_duplicated_over_another(checkpoint: Path) -> None:
    shutil.copy(checkpoint / "model.json", checkpoint / "model.safetensors")

    refused(checkpoint, "model.safetensors: .* bytes, should be")


def test_a_file_of_another_checkpoint(checkpoint: Path) -> None:
    other = checkpoint.with_name("step-00000500")
    save(other, {"rng": {"python": [3, [1, 2, 4], None]}}, 500, {})
    shutil.copy(other / "rng.json", checkpoint / "rng.json")

    refused(checkpoint, "rng.json: damaged, its sha256 does not match")


@pytest.mark.parametrize("name", FILES)
def test_a_link_to_the_right_content(checkpoint: Path, name: str) -> None:
    (checkpoint / name).rename(checkpoint.with_name(name))
    (checkpoint / name).symlink_to(checkpoint.with_name(name))

    refused(checkpoint, f"{name}: is a symbolic link|{name} is a symbolic link")


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file(checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink()
    (checkpoint / name).mkdir()
    refused(checkpoint, f"{name}: is not a regular file")
    (checkpoint / name).rmdir()
    os.mkfifo(checkpoint / name)
    refused(checkpoint, f"{name}: is not a regular file")


def test_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", "cannot read .*file/manifest.json")
    (problem,) = verify(tmp_path / "nothing")
    assert "cannot read " in problem
    with pytest.raises(CheckpointError, match=r"there is no checkpoint .*nothing; neaptide ckpt"):
        load(tmp_path / "nothing")


def test_many_problems_are_shown_in_part(checkpoint: Path) -> None:
    for number in range(8):
        (checkpoint / f"extra-{number}").touch()

    with pytest.raises(CheckpointError, match="; 3 more; load an older checkpoint"):
        load(checkpoint)
    assert 8 == len(verify(checkpoint))


@pytest.mark.parametrize("name", ["model.safetensors", "model.json"])
def test_a_file_exchanged_after_it_was_verified(checkpoint: Path, name: str) -> None:
    loaded = load(checkpoint)
    shutil.copy(checkpoint / name, checkpoint / "same")
    (checkpoint / "same").rename(checkpoint / name)

    with pytest.raises(CheckpointError, match="changed after it was verified"):
        loaded.section("model")


def test_a_file_changed_between_two_tensors(checkpoint: Path) -> None:
    tensors = load(checkpoint).tensors("model")
    assert 50 == len(tensors["/steps"])
    with (checkpoint / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\1")

    with pytest.raises(CheckpointError, match="changed after it was verified"):
        tensors["/weight"]


def test_a_file_changed_while_it_is_read(checkpoint: Path) -> None:
    path = checkpoint / "rng.json"

    with pytest.raises(CheckpointError, match="changed while it was read"), opened(path):
        path.write_bytes(b"longer")


def test_a_directory_that_becomes_a_link_after_it_was_verified(checkpoint: Path) -> None:
    loaded = load(checkpoint)
    away = checkpoint.with_name("away")
    checkpoint.rename(away)
    checkpoint.symlink_to(away)

    for read in (
        lambda: loaded.section("model"),
        lambda: loaded.outline("model"),
        lambda: loaded.tensors("model"),
        lambda: load(checkpoint),
    ):
        with pytest.raises(CheckpointError, match=r"step-00000400 is a symbolic link") as caught:
            read()
        assert "\n" not in str(caught.value)
    refused(checkpoint, f"{checkpoint.name} is a symbolic link")


def test_a_link_with_a_name_of_the_users_is_followed(checkpoint: Path) -> None:
    link = checkpoint.with_name("best")
    link.symlink_to(checkpoint)
    assert [3, [1, 2, 3], None] == load(link).section("rng")["python"]
    assert [] == verify(link)


def test_pruned_after_it_was_verified(checkpoint: Path) -> None:
    loaded = load(checkpoint)
    shutil.rmtree(checkpoint)

    with pytest.raises(CheckpointError, match="No such file"):
        loaded.section("rng")
