"""Our streaming safetensors and the library's: the same files, the same bits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from neaptide.checkpoint.safetensors_header import DTYPES
from neaptide.checkpoint.safetensors_stream import TensorFile, pieces, resident, write_tensors
from neaptide.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Told = dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]

names = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
kinds = st.tuples(st.sampled_from([*DTYPES.values()]), st.lists(st.integers(0, 4), max_size=4))
metadata = st.dictionaries(
    st.text("ab é\n{", max_size=4), st.text('ab"\\\n{}', max_size=4), max_size=3
)


@st.composite
def states(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    """Draw tensors of arbitrary bits: every dtype, 0 to 4 dimensions, empty ones too."""
    made = {}
    for name, (dtype, shape) in draw(st.dictionaries(names, kinds, max_size=5)).items():
        size = torch.Size(shape).numel() * dtype.itemsize
        raw = draw(st.binary(min_size=size, max_size=size))
        raw = bytes(byte % 2 for byte in raw) if dtype is torch.bool else raw
        flat = torch.tensor([*raw], dtype=torch.uint8).view(dtype)
        made[name] = flat.reshape(shape)
    return made


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two-readers") / "x.safetensors"


def told(tensors: Mapping[str, torch.Tensor]) -> Told:
    """Return dtype, shape and bytes of each tensor."""
    return {
        name: (tensors[name].dtype, tuple(tensors[name].shape), b"".join(pieces(tensors[name])))
        for name in tensors
    }


def ours(path: Path) -> Told | None:
    """Return what the streaming reader reads; None where it refuses the file."""
    try:
        return told(TensorFile(path))
    except CheckpointError:
        return None


def theirs(path: Path) -> Told | None:
    """Return what the library reads; None where it refuses the file."""
    try:
        return told(load_file(path))
    except (SafetensorError, RuntimeError, TypeError):  # torch's own, for shapes that overflow
        return None


def write(path: Path, header: Any, data: bytes = bytes(10)) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: Any, shape: Any, *offsets: Any, **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [*offsets], **more}


@given(states(), metadata)
def test_what_is_streamed_to_a_file_the_library_reads_bit_for_bit(
    path: Path, tensors: dict[str, torch.Tensor], said: dict[str, str]
) -> None:
    with path.open("wb") as file:
        write_tensors(file, [resident(*named) for named in tensors.items()], said)
    assert told(tensors) == theirs(path) == ours(path) == told(TensorFile(path).whole())
    with safe_open(path, "pt") as opened:
        assert {**said, "format": "pt"} == opened.metadata()


@given(states(), metadata | st.none())
def test_what_the_library_writes_is_streamed_from_the_file_bit_for_bit(
    path: Path, tensors: dict[str, torch.Tensor], said: dict[str, str] | None
) -> None:
    # Of no tensors and empty metadata the library writes a header that it cannot read itself.
    save_file(tensors, path, said or None)
    assert told(tensors) == ours(path) == theirs(path)


TWO = {"alpha": torch.arange(3.0), "beta": torch.arange(4, dtype=torch.int16).view(2, 2)}


@settings(max_examples=500)
@given(st.integers(0, 250), st.integers(0, 255), st.sampled_from(["ours", "theirs"]))
@example(26, ord("{"), "ours")
def test_a_byte_that_is_changed_is_refused_by_both_or_read_alike_by_both(
    path: Path, position: int, value: int, writer: str
) -> None:
    if writer == "theirs":
        save_file(TWO, path)
    else:
        with path.open("wb") as file:
            write_tensors(file, [resident(*named) for named in TWO.items()])
    content = bytearray(path.read_bytes())
    content[position % len(content)] = value
    path.write_bytes(content)
    assert theirs(path) == ours(path)


@given(st.integers(0, 250), st.binary(max_size=9))
def test_a_file_that_is_cut_or_longer_is_refused_by_both(
    path: Path, kept: int, more: bytes
) -> None:
    save_file(TWO, path)
    content = path.read_bytes()
    path.write_bytes(content[:kept] + more if kept < len(content) else content + more)
    assert theirs(path) == ours(path)


numbers = st.sampled_from([0, 1, 2, 5, 10, 20, -1, -10, 2**31, 2**62, 2**63, 2**64])
odd = st.sampled_from([True, 1.0, 10.0, "10", None, [], {}])
entries = st.builds(
    entry,
    st.sampled_from(["U8", "I8", "BOOL", "F16", "F8_E5M2", "F64", "u8", "O", ""]) | odd,
    st.lists(numbers | odd, max_size=3) | odd,
    numbers | odd,
    numbers | odd,
)
likely = st.tuples(st.sampled_from(["U8", "BF16"]), st.integers(0, 2)).flatmap(
    lambda drawn: st.sampled_from(
        [
            entry(drawn[0], [10 if drawn[0] == "U8" else 5], 0, 10),
            entry(drawn[0], [drawn[1]], 0, drawn[1] * (1 if drawn[0] == "U8" else 2)),
            entry(drawn[0], [0, drawn[1]], 10, 10),
        ]
    )
)


@settings(max_examples=500)
@given(st.dictionaries(st.sampled_from("abc"), entries | likely, max_size=3))
@example({"a": entry("U8", [10], 0, 10), "b": entry("U8", [2**62, 2**62, 0], 10, 10)})
@example({"a": entry("U8", [10], 0, 10), "b": entry("U8", [0, 2**63], 0, 0)})
@example({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 6, 10)})
@example({"a": entry("U8", [6], 0, 6), "b": entry("U8", [5], 5, 10)})
def test_a_header_is_refused_by_both_or_read_alike_by_both(
    path: Path, header: dict[str, Any]
) -> None:
    write(path, header)
    assert theirs(path) == ours(path)


ENTRY = entry("U8", [10], 0, 10)
TEXT = json.dumps(ENTRY).encode()
STRICTER = {
    "a name twice has two meanings": b'{"a":%s,"a":%s}' % (TEXT, TEXT),
    "a key of the metadata twice": b'{"__metadata__":{"a":"b","a":"c"},"a":%s}' % TEXT,
    "a description says more than there is": {"a": ENTRY | {"more": 1}},
    "a description is a list": b'{"a":["U8",[10],[0,10]]}',
    "metadata is read with the entries' bound": {"__metadata__": {"a": "b" * 5000}, "a": ENTRY},
    "metadata is null": {"__metadata__": None, "a": ENTRY},
    "more dimensions than torch takes": {"a": entry("U8", [*[1] * 64, 10], 0, 10)},
    "a name longer than its bound": {"x" * 70_000: ENTRY},
    "a dtype that is never written": {"a": ENTRY | {"dtype": "F8_E8M0"}},
    "spaces before the header": b" " + json.dumps({"a": ENTRY}).encode(),
}
LAXER = {
    "metadata is passed over unless it is no object": {"__metadata__": {"a": 1}, "a": ENTRY},
    "metadata twice is passed over": b'{"__metadata__":{},"__metadata__":{},"a":%s}' % TEXT,
    "half of a surrogate pair is a name like another": b'{"\\ud800":%s}' % TEXT,
}


@pytest.mark.parametrize("why", STRICTER)
def test_what_the_library_reads_and_we_refuse(path: Path, why: str) -> None:
    write(path, STRICTER[why])
    assert theirs(path) is not None
    assert ours(path) is None


@pytest.mark.parametrize("why", LAXER)
def test_what_we_stream_and_refuse_as_a_whole_as_the_library_does(path: Path, why: str) -> None:
    write(path, LAXER[why])
    assert theirs(path) is None
    assert ours(path) is not None
    with pytest.raises(CheckpointError, match=r"library cannot read it: .*header") as caught:
        TensorFile(path).whole()
    assert 1 == len(str(caught.value).splitlines())


def test_what_is_read_as_a_whole_is_no_view_of_the_file(path: Path) -> None:
    save_file(TWO, path)
    file = TensorFile(path)
    read = file.whole()
    before = told(read)
    with path.open("r+b") as changed:
        changed.seek(-28, 2)
        changed.write(bytes(28))
    assert before == told(read) == told(TWO)
    with pytest.raises(CheckpointError, match="changed after it was verified"):
        file.whole()
    for tensor in read.values():
        assert tensor.nbytes == tensor.untyped_storage().nbytes()


def test_a_system_without_names_for_open_files_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file(TWO, path)
    file = TensorFile(path)
    with monkeypatch.context() as patched:
        patched.setattr(
            "neaptide.checkpoint.safetensors_stream.load_file",
            lambda _, **options: load_file(path.with_name("none"), **options),
        )
        with pytest.raises(
            CheckpointError, match=r"library cannot read it: No such file"
        ) as caught:
            file.whole()
    assert str(caught.value).startswith(str(path))
    assert told(TWO) == told(file.whole())


def test_a_file_put_in_the_place_of_another_is_not_read(path: Path) -> None:
    save_file(TWO, path)
    file = TensorFile(path)
    other = path.with_name("other.safetensors")
    save_file({name: tensor + 1 for name, tensor in TWO.items()}, other)
    other.rename(path)
    with pytest.raises(CheckpointError, match="changed after it was verified"):
        file.whole()
