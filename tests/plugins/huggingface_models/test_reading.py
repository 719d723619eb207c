"""Files of weights are in the system's cache before a model uses them."""

from __future__ import annotations

import errno
import json
import os
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("transformers")

from neaptide_plugins.huggingface_models import reading

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20


def write(folder: Path, *names: str) -> list[Path]:
    for number, name in enumerate(names):
        weights = torch.arange(3 * MIB, dtype=torch.float32) + number
        save_file({"a": weights, "b": torch.empty(0), "c": torch.ones(3)}, folder / name)
    return [folder / name for name in names]


def cached(path: Path, offset: int) -> bool:
    with path.open("rb", buffering=0) as file:
        try:
            os.preadv(file.fileno(), [bytearray(1)], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return False
            pytest.skip("the file system does not say what is in the cache")
    return True


def test_an_index_names_the_files_in_its_order(tmp_path: Path) -> None:
    write(tmp_path, "2.safetensors", "1.safetensors", "other.safetensors", "model.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    told = {"a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors", "d": "no.safetensors"}
    index.write_text(json.dumps({"weight_map": told}))
    assert [tmp_path / "2.safetensors", tmp_path / "1.safetensors"] == reading.files_of(tmp_path)
    for wrong in ("", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}'):
        index.write_text(wrong)
        assert [tmp_path / "model.safetensors"] == reading.files_of(tmp_path)


def test_a_folder_without_weights_has_no_files(tmp_path: Path) -> None:
    assert [] == reading.files_of(tmp_path)


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="only Linux says what is in the cache")
def test_files_that_left_the_cache_come_back(tmp_path: Path) -> None:
    paths = write(tmp_path, "1.safetensors", "2.safetensors")
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert reading.read_ahead(paths) is not None
    places = [(path, at) for path in paths for at in range(0, path.stat().st_size, MIB // 4)]
    end = time.monotonic() + 60
    while not all(cached(*place) for place in places):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_files_larger_than_half_of_the_memory_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write(tmp_path, "model.safetensors")
    size = paths[0].stat().st_size
    for room, fits in ((2 * size, True), (2 * size - 1, False), (None, False)):
        monkeypatch.setattr(reading, "memory", lambda room=room: SimpleNamespace(room=room))
        assert fits is reading.fit_in_memory(paths)


def test_files_are_mapped_unless_a_dtype_or_experts_are_converted(tmp_path: Path) -> None:
    paths = write(tmp_path, "1.safetensors", "2.safetensors")
    for wanted, mapped in ((torch.float32, True), (None, True), (torch.bfloat16, False)):
        assert mapped is reading.are_mapped(paths, wanted)
    mixed, experts = tmp_path / "mixed.safetensors", tmp_path / "experts.safetensors"
    save_file({"a": torch.ones(3), "b": torch.ones(3, dtype=torch.float16)}, mixed)
    save_file({"layer.0.experts.7.up.weight": torch.ones(3)}, experts)
    for path in (mixed, experts):
        assert not reading.are_mapped([path], None)


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0{}", b"\x02\0\0\0\0\0\0\0[]"]
)
def test_who_reads_damaged_files_says_nothing(tmp_path: Path, content: bytes) -> None:
    damaged = tmp_path / "model.safetensors"
    damaged.write_bytes(content)
    reading.read_ends([damaged])
    assert not reading.are_mapped([damaged], None)
    thread = reading.read_ahead([damaged])
    assert thread is not None
    thread.join()
