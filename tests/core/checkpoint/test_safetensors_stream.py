"""safetensors files written in pieces: what the library reads, and what it wrote itself."""

from __future__ import annotations

import io
import json
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from neaptide.checkpoint.safetensors_header import DTYPES
from neaptide.checkpoint.safetensors_stream import (
    PIECE,
    TensorFile,
    TensorItem,
    pieces,
    resident,
    write_tensors,
)
from neaptide.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def random_bits(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Return a tensor of arbitrary bits, NaNs included; of booleans, 0 and 1."""
    count = torch.Size(shape).numel() * dtype.itemsize
    high = 2 if dtype is torch.bool else 256
    return torch.randint(0, high, (count,), dtype=torch.uint8).view(dtype).reshape(shape)


def write(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    with path.open("wb") as file:
        write_tensors(file, [resident(*named) for named in tensors.items()])
    return path


def bits(tensor: torch.Tensor) -> bytes:
    return b"".join(pieces(tensor))


def assert_same(expected: dict[str, torch.Tensor], actual: Any) -> None:
    assert expected.keys() == set(actual)
    for name, tensor in expected.items():
        assert (tensor.dtype, tensor.shape) == (actual[name].dtype, actual[name].shape)
        assert bits(tensor) == bits(actual[name])


EVERY_DTYPE = {name: random_bits(dtype, 3, 5) for name, dtype in DTYPES.items()}
EVERY_SHAPE = {
    "0-dim": torch.tensor(1.5),
    "0-element": torch.empty(0),
    "0-element of two dims": torch.empty(4, 0, dtype=torch.bool),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "strided": torch.arange(20)[::3],
    "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
    "channels last": torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    "view with an offset": torch.arange(10, dtype=torch.int16)[3:],
    "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
    "negative": torch._neg_view(torch.randn(3)),
    "negative and strided": torch.randn(3, dtype=torch.complex64).conj().imag,
    "requires grad": torch.nn.Parameter(torch.randn(3)),
}
NAMES = {"": torch.ones(1), "é\n\0": torch.ones(2), "../x": torch.ones(3), "/a~1": torch.ones(4)}


@pytest.mark.parametrize("tensors", [EVERY_DTYPE, EVERY_SHAPE, NAMES, {}])
def test_the_library_reads_it_and_so_do_we(
    tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    path = write(tmp_path / "x", tensors)

    assert_same(tensors, load_file(path))
    assert_same(tensors, TensorFile(path))
    with safe_open(path, "pt") as file:
        assert {"format": "pt"} == file.metadata()


def test_we_read_what_the_library_wrote(tmp_path: Path) -> None:
    tensors = EVERY_DTYPE | {"0-dim": torch.tensor(1.5), "0-element": torch.empty(0, 3)}
    save_file(tensors, tmp_path / "x", {"format": "pt", "note": "y"})

    assert_same(tensors, TensorFile(tmp_path / "x"))


@given(st.lists(st.tuples(st.sampled_from([*DTYPES]), st.lists(st.integers(0, 4), max_size=4))))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, kinds: list[Any]) -> None:
    tensors = {
        str(index): random_bits(DTYPES[dtype], *shape) for index, (dtype, shape) in enumerate(kinds)
    }
    path = write(tmp_path_factory.getbasetemp() / "round-trip.safetensors", tensors)

    assert_same(tensors, TensorFile(path))
    assert_same(tensors, load_file(path))


def test_headers_without_reading(tmp_path: Path) -> None:
    opened = TensorFile(write(tmp_path / "x", {"a": torch.zeros(2, 3, dtype=torch.int8)}))

    assert (torch.int8, (2, 3)) == opened.info("a")
    assert "a" in opened
    assert "b" not in opened
    with pytest.raises(KeyError):
        opened["b"]


class Recorder:
    """A sink that keeps what it is given and the largest piece of it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.largest = 0

    def write(self, data: memoryview) -> int:
        self.data += data
        self.largest = max(self.largest, len(data))
        return len(data)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6 * 2**20).reshape(3, -1),
        torch.arange(6 * 2**20).reshape(3, -1).t(),
        torch.arange(6 * 2**20).reshape(1, 1, 3, -1).transpose(2, 3),
        torch.arange(3 * 2**20).reshape(-1, 1).expand(-1, 2),
        torch.arange(100, dtype=torch.int16).expand(2**19, 100).t()[:, ::2],
    ],
)
def test_large_tensors_go_in_pieces(tensor: torch.Tensor) -> None:
    assert tensor.nbytes > PIECE
    recorder = Recorder()

    write_tensors(recorder, [resident("x", tensor)])

    assert recorder.largest <= PIECE
    assert recorder.data.endswith(tensor.contiguous().numpy().tobytes())


def test_one_tensor_is_loaded_at_a_time_and_each_once(tmp_path: Path) -> None:
    events: list[str] = []

    @contextmanager
    def load(name: str) -> Iterator[torch.Tensor]:
        events.append(f"+{name}")
        yield torch.full((2,), float(name))
        events.append(f"-{name}")

    items = [(name, torch.float32, (2,), lambda name=name: load(name)) for name in ("3", "1", "2")]
    with (tmp_path / "x").open("wb") as file:
        write_tensors(file, items)

    assert ["+3", "-3", "+1", "-1", "+2", "-2"] == events
    assert [2.0, 2.0] == load_file(tmp_path / "x")["2"].tolist()


def test_wider_dtypes_come_first_so_that_all_are_aligned(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(3, dtype=torch.uint8), "b": torch.ones(1), "c": torch.ones(1).half()}

    data = write(tmp_path / "x", tensors).read_bytes()

    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert 0 == length % 8
    assert [[0, 4], [4, 6], [6, 9]] == [header[name]["data_offsets"] for name in ("b", "c", "a")]


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (resident("x", torch.zeros(2, dtype=torch.complex128)), "cannot save torch.complex128"),
        (resident("__metadata__", torch.zeros(2)), "cannot name a tensor"),
        (resident("same", torch.zeros(2)), "cannot name a tensor"),
        (resident("\ud800", torch.zeros(2)), "cannot name a tensor"),
        (resident("x", torch.zeros([1] * 65)), "65 dimensions, at most 64"),
        (
            TensorItem("x", torch.float32, (2,), resident("x", torch.zeros(3)).load),
            r"is float32 \[3\], but its item declares float32 \[2\]",
        ),
        (
            TensorItem("x", torch.float32, (2,), resident("x", torch.zeros(2).half()).load),
            r"is float16 \[2\], but its item declares float32 \[2\]",
        ),
        (resident("x" * 2**16, torch.zeros(2)), "longer than 65536 bytes; shorten it"),
    ],
)
def test_what_could_not_be_read_is_not_written(item: TensorItem, why: str) -> None:
    with pytest.raises(CheckpointError, match=why):
        write_tensors(Recorder(), [resident("same", torch.zeros(1)), item])


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ([f"{n:05d}" + "x" * 60_000 for n in range(1700)], "bytes, at most 100000000"),
        ([f"{n:05d}" + "[" * 60_000 for n in range(20)], "JSON values, at most 1000000"),
    ],
    ids=["bytes", "values"],
)
def test_more_names_than_can_be_read_are_not_written(names: list[str], why: str) -> None:
    tensor = torch.zeros(0)
    with pytest.raises(CheckpointError, match=why):
        write_tensors(io.BytesIO(), [resident(name, tensor) for name in names])


def test_names_as_long_as_can_be(tmp_path: Path) -> None:
    tensors = {quote * 32_000: torch.ones(2) for quote in ('"', "\\", "x", "{", "}")}
    tensors["\N{WAVE DASH}" * 10_000] = torch.zeros(1, *[1] * 63)
    back = TensorFile(write(tmp_path / "w", tensors))
    assert tensors.keys() == back.keys()
    assert all(torch.equal(tensors[name], back[name]) for name in tensors)


@pytest.mark.parametrize("cut", [(0, 24), (8, 16), (20, 24), (24, 24), (0, 0)])
def test_any_bytes_of_a_tensor_are_read_into_a_place_of_the_callers(
    tmp_path: Path, cut: tuple[int, int]
) -> None:
    tensors = {"before": torch.ones(5), "x": torch.arange(3)}
    opened = TensorFile(write(tmp_path / "x", tensors))
    into = bytearray(cut[1] - cut[0])
    opened.read_into("x", memoryview(into), cut[0])
    assert tensors["x"].numpy().tobytes()[slice(*cut)] == into


@pytest.mark.parametrize("cut", [(-1, 4), (20, 28), (25, 25)])
def test_bytes_that_are_not_the_tensors_are_not_read(tmp_path: Path, cut: tuple[int, int]) -> None:
    opened = TensorFile(write(tmp_path / "x", {"x": torch.arange(3), "after": torch.ones(5)}))
    with pytest.raises(ValueError, match=r"has no .* bytes from"):
        opened.read_into("x", memoryview(bytearray(cut[1] - cut[0])), cut[0])


def test_a_written_tensor_is_let_go_before_the_next_is_loaded() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    @contextmanager
    def load() -> Iterator[torch.Tensor]:
        assert all(tensor() is None for tensor in alive)
        tensor = torch.ones(4)
        alive.append(weakref.ref(tensor))
        yield tensor

    write_tensors(io.BytesIO(), [(name, torch.float32, (4,), load) for name in "abc"])
    assert 3 == len(alive)
