"""Large files are read by several threads: the same bytes, and every damage is still told."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
from typing import TYPE_CHECKING, Any

import pytest
import torch

from neaptide.checkpoint import load, read_manifest, save, verify
from neaptide.checkpoint.safetensors_stream import PIECE
from neaptide.checkpoint.verify import MUCH
from neaptide.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Preadv = Callable[[int, list[memoryview], int], int]

FILE = "state.safetensors"
SIZE = 2 * PIECE + 4321


@pytest.fixture(scope="module")
def tensor() -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(0)
    return torch.randint(0, 256, (SIZE,), dtype=torch.uint8, generator=generator, device="cpu")


@pytest.fixture(scope="module")
def checkpoint(tensor: torch.Tensor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("large") / "step-00000001"
    save(directory, {"state": {"x": tensor}, "more": {"x": tensor[: 3 * MUCH]}}, 1, {})
    return directory


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Preadv], Preadv]], None]:
    """Return a function that replaces `os.preadv`."""

    def replace(make: Callable[[Preadv], Preadv]) -> None:
        monkeypatch.setattr(os, "preadv", make(os.preadv))

    return replace


def test_the_digest_is_that_of_the_file(checkpoint: Path) -> None:
    for name, entry in read_manifest(checkpoint).files.items():
        assert entry.sha256 == hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()
    assert [] == verify(checkpoint)


@pytest.mark.parametrize("name", [FILE, "more.safetensors"])
def test_a_flipped_bit_at_each_edge_of_a_piece(checkpoint: Path, name: str) -> None:
    path = checkpoint / name
    size = path.stat().st_size
    edges = {0, size - 1, *range(MUCH - 1, size, MUCH), *range(MUCH, size, MUCH)}
    with path.open("r+b") as file:
        for place in sorted(edges):
            for told in (["damaged, its sha256 does not match"], []):  # flipped, and back
                byte = os.pread(file.fileno(), 1, place)
                os.pwrite(file.fileno(), bytes([byte[0] ^ 16]), place)
                assert told == [one.split(": ")[-1] for one in verify(checkpoint)], place


@pytest.mark.parametrize("short", [1, MUCH, PIECE, PIECE + 1, SIZE])
def test_a_file_that_is_too_short(checkpoint: Path, short: int) -> None:
    path = checkpoint / FILE
    whole = path.read_bytes()
    os.truncate(path, len(whole) - short)
    try:
        with pytest.raises(CheckpointError, match="bytes, should be"):
            load(checkpoint)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("start", [0, 1, PIECE - 1, PIECE, SIZE - 1, SIZE])
def test_any_part_is_read(checkpoint: Path, tensor: torch.Tensor, start: int) -> None:
    file = load(checkpoint).tensors("state")
    into = bytearray(SIZE - start)
    file.read_into("/x", memoryview(into), start)
    assert into == tensor.numpy().tobytes()[start:]


def test_short_reads(checkpoint: Path, tensor: torch.Tensor, reads: Any) -> None:
    reads(lambda real: lambda file, into, at: real(file, [into[0][: 1 + PIECE // 3]], at))
    file, place = load(checkpoint).tensors("state"), torch.zeros_like(tensor)
    file.copy_to("/x", place)
    assert torch.equal(tensor, place)
    assert torch.equal(tensor, file["/x"])


@pytest.mark.parametrize("piece", [0, 1, 2])
def test_a_disk_that_fails_at_a_piece(checkpoint: Path, reads: Any, piece: int) -> None:
    def failing(real: Preadv) -> Preadv:
        def read(file: int, into: list[memoryview], at: int) -> int:
            if piece * PIECE <= at - (at % 4096) < (piece + 1) * PIECE:
                raise OSError(errno.EIO, "Input/output error")
            return real(file, into, at)

        return read

    file = load(checkpoint).tensors("state")
    reads(failing)
    with pytest.raises(CheckpointError, match=f"cannot read .*{FILE}: Input/output error"):
        file["/x"]


def test_a_file_that_ends_while_it_is_read(checkpoint: Path, reads: Any) -> None:
    file = load(checkpoint).tensors("state")
    reads(lambda real: lambda number, into, at: real(number, into, at) if at < PIECE else 0)
    with pytest.raises(CheckpointError, match=f"{FILE} ended inside tensor '/x'"):
        file["/x"]


def _without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)


def _without_a_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)


@pytest.mark.parametrize("without", [_without_huge_pages, _without_a_mapping])
def test_a_system_without_huge_pages(
    checkpoint: Path,
    tensor: torch.Tensor,
    monkeypatch: pytest.MonkeyPatch,
    without: Callable[[pytest.MonkeyPatch], None],
) -> None:
    file = load(checkpoint).tensors("state")
    usual = file["/x"]
    without(monkeypatch)
    assert torch.equal(usual, tensor)
    assert torch.equal(usual, file["/x"])
    usual += 1  # it can be written, and is nobody else's
    assert torch.equal(tensor, file["/x"])
