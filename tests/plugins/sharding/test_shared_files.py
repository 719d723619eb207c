"""Files to which several processes write: byte for byte those that one process writes."""

from __future__ import annotations

from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch
from support import DEVICE

from neaptide.checkpoint import TensorFile, writing
from neaptide.checkpoint.safetensors_stream import pieces, resident, write_tensors
from neaptide.io.folder import Folder
from neaptide_plugins.sharding.rows import RowShare, stand_in
from neaptide_plugins.sharding.saves.shared_files import SharedFile, SharedFiles

if TYPE_CHECKING:
    from pathlib import Path

NAME = "weights.safetensors"


def tensors() -> dict[str, torch.Tensor]:
    """Return tensors of several widths, and sizes that do not divide evenly."""
    torch.manual_seed(0)
    return {
        "small": torch.randn(3, dtype=torch.float64).to(DEVICE),
        "here": torch.arange(7).to(DEVICE),
        "large": torch.randn(11, 5).to(DEVICE),
        "half": torch.randn(4, 3, 2).to(torch.bfloat16).to(DEVICE),
        "empty": torch.zeros(0, 4).to(DEVICE),
        "bytes": torch.randint(255, (9,), dtype=torch.uint8).to(DEVICE),
    }


@pytest.mark.parametrize("size", [1, 2, 4, 12])
def test_what_all_write_is_what_one_writes(tmp_path: Path, size: int) -> None:
    whole, apart = tensors(), {"small", "large", "half", "empty", "bytes"}
    with closing(Folder(tmp_path)) as folder:
        with SharedFile(folder, "shared", apart=apart) as shared:
            given = {
                name: stand_in(one.dtype, tuple(one.shape)) if name in apart else one
                for name, one in whole.items()
            }
            write_tensors(shared, [resident(*named) for named in given.items()])
        with (tmp_path / "one").open("wb") as file:
            write_tensors(file, [resident(*named) for named in whole.items()])
        assert apart - {"empty"} == shared.places.keys()
        assert shared.bytes == (tmp_path / "shared").stat().st_size
        for rank in reversed(range(size)):
            with (tmp_path / "shared").open("r+b") as file:
                for name, start in shared.places.items():
                    share = RowShare(tuple(whole[name].shape), rank, size)
                    file.seek(start + share.offset(whole[name].itemsize))
                    for piece in pieces(share.own(whole[name])):
                        file.write(piece)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "shared").read_bytes()
    assert torch.equal(TensorFile(tmp_path / "shared")["large"], whole["large"].cpu())


def test_only_named_files_are_shared(tmp_path: Path) -> None:
    with suppress(RuntimeError), writing(tmp_path / "step-00000001", 1, {}) as writer:
        files = SharedFiles(writer, {NAME: {"large"}, "other.safetensors": set()})
        for name, kind in (("a.json", None), ("other.safetensors", None), (NAME, SharedFile)):
            with files.file(name) as file:
                assert (kind is SharedFile) == isinstance(file, SharedFile)
                write = partial(write_tensors, file)
                if name != "a.json":
                    write([resident("large", stand_in(torch.float32, (4, 2)))])
        assert [NAME] == [one.name for one in files.made]
        assert files.bytes == sum(one.stat().st_size for one in files.made[0].folder.path.iterdir())
        raise RuntimeError
    assert [] == [*tmp_path.iterdir()]


def test_what_nobody_has_written_cannot_be_taken_for_numbers() -> None:
    assert stand_in(torch.float32, (2, 3)).isnan().all()
    assert 0 == stand_in(torch.int64, (5,)).untyped_storage().nbytes() - 8
