"""Checkpoints made to harm: rejected within a second, nothing run, nothing made outside.

Their manifests are right: whoever can write a file can write its digest as well.
"""

from __future__ import annotations

import gc
import hashlib
import io
import json
import os
import pickle
import re
import subprocess
import sys
import time
import zipfile
from contextlib import contextmanager
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
import torch

from neaptide.checkpoint import (
    FileEntry,
    Manifest,
    canonical,
    load,
    newest_valid,
    save,
    verify,
    writing,
)
from neaptide.checkpoint.manifest import render
from neaptide.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def rejected(why: str) -> Iterator[None]:
    # The time of what is tried alone: other tests left threads and objects in this process.
    gc.freeze()
    start = time.thread_time()
    try:
        with pytest.raises(CheckpointError, match=why):
            yield
        assert time.thread_time() - start < 1
    finally:
        gc.unfreeze()


def craft(directory: Path, **files: bytes) -> Path:
    named = re.fullmatch(r"step-(\d+)", directory.name)
    with writing(directory, int(named[1]) if named else 1, {}) as writer:
        for name, content in files.items():
            writer.file(name.replace("_", ".")).write(content)
    return directory


def safetensors(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(start: int, stop: int, *shape: int, dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def pickled(path: Path) -> bytes:
    return pickle.dumps(Payload(path))


def torch_saved(path: Path) -> bytes:
    file = io.BytesIO()
    torch.save(Payload(path), file)
    return file.getvalue()


def zip_bomb(_: Path) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(50_000_000))
    return file.getvalue()


@pytest.mark.parametrize("make", [pickled, torch_saved, zip_bomb])
@pytest.mark.parametrize("name", ["state_json", "state_safetensors"])
def test_no_pickle_is_opened(tmp_path: Path, make: Any, name: str) -> None:
    files = {"state_json": b'{"$tensor": "x"}', name: make(tmp_path / "ran")}
    directory = craft(tmp_path / "c", **files)

    with rejected("not a safetensors file|not strict JSON"):
        load(directory).section("state")

    assert [directory] == list(tmp_path.iterdir())


@pytest.mark.parametrize("make", [pickled, torch_saved, zip_bomb])
def test_a_manifest_that_is_none(tmp_path: Path, make: Any) -> None:
    directory = craft(tmp_path / "c")
    (directory / "manifest.json").write_bytes(make(tmp_path / "ran"))

    with rejected("not strict JSON"):
        load(directory)

    assert [directory] == list(tmp_path.iterdir())


TEN = bytes(10)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x08",
        (2**63).to_bytes(8, "little"),
        (2**64 - 1).to_bytes(8, "little") + TEN,
        (11).to_bytes(8, "little") + TEN,
        safetensors(b""),
        safetensors(b"[]"),
        safetensors(b"null"),
        safetensors(b"{" * 1000),
        safetensors(b"[" * 2_000_000),
        safetensors(b'{"x": NaN}'),
        safetensors(b"\xff\xfe"),
        safetensors(b'{"a": %s, "a": %s}' % ((json.dumps(entry(0, 10, 10)).encode(),) * 2), TEN),
    ],
)
def test_headers(tmp_path: Path, content: bytes) -> None:
    directory = craft(tmp_path / "c", w_safetensors=content)

    with rejected(r"w\.safetensors: "):
        load(directory).tensors("w")


@pytest.mark.parametrize(
    "header",
    [
        {"a": entry(0, 10, 10), "b": entry(0, 10, 10)},
        {"a": entry(0, 6, 6), "b": entry(5, 10, 5)},
        {"a": entry(0, 4, 4), "b": entry(6, 10, 4)},
        {"a": entry(1, 10, 9)},
        {"a": entry(0, 9, 9)},
        {"a": entry(0, 11, 11)},
        {"a": entry(10, 0, 10)},
        {"a": entry(-10, 0, 10)},
        {"a": entry(0, 2**40, 2**40)},
        {"a": entry(0, 10, 2**40)},
        {"a": entry(0, 10, 10), "b": entry(0, 0, 2**62, 2**62, 0)},
        {"a": entry(0, 10, 10), "b": entry(10, 10, 2**62, 2**62, 0)},
        {"a": entry(0, 10, 10), "b": entry(10, 10, 2**64, 0)},
        {"a": entry(0, 10, *[1] * 64, 10)},
        {"a": entry(0, 10, -10)},
        {"a": entry(0, 10, -1, -10)},
        {"a": entry(0, 10, 10) | {"shape": [10.0]}},
        {"a": entry(0, 10, 10) | {"shape": [True, 10]}},
        {"a": entry(0, 10, 10) | {"shape": "10"}},
        {"a": entry(0, 10, 10) | {"data_offsets": [0]}},
        {"a": entry(0, 10, 10) | {"data_offsets": [0.0, 10.0]}},
        {"a": entry(0, 10, 10, dtype="O")},
        {"a": entry(0, 10, 10, dtype="F64")},
        {"a": entry(0, 10, 10) | {"dtype": ["U8"]}},
        {"a": entry(0, 10, 10) | {"more": 1}},
        {"a": [0, 10]},
        {},
    ],
)
def test_descriptions_of_tensors(tmp_path: Path, header: dict[str, Any]) -> None:
    directory = craft(tmp_path / "c", w_safetensors=safetensors(header, TEN))

    with rejected(r"w\.safetensors: (its tensors overlap|tensor '.')"):
        load(directory).tensors("w")


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../../x", "..", ".", "", "a\0b", ".tmp", "manifest.json"]
)
def test_names_that_escape(tmp_path: Path, name: str) -> None:
    (tmp_path / "x").write_bytes(b"")
    directory = craft(tmp_path / "c")
    files = {name: FileEntry("0" * 64, 0)}
    (directory / "manifest.json").write_bytes(render(Manifest("1", 1, files, {})))

    with rejected("cannot name a file"):
        load(directory)


def test_a_link_that_leaves_the_directory(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b'"secret"')
    directory = craft(tmp_path / "c", state_json=b'"secret"')
    (directory / "state.json").unlink()
    (directory / "state.json").symlink_to(tmp_path / "secret")

    with rejected("is a symbolic link"):
        load(directory)


def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    directory = craft(tmp_path / "c")
    (directory / "manifest.json").unlink()
    os.mkfifo(directory / "manifest.json")

    with rejected("not a regular file"):
        load(directory)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": 2}, "format 2 cannot be read"),
        ({"step": -1}, "cannot be read"),
        ({"step": True}, "cannot be read"),
        ({"step": "1"}, "cannot be read"),
        ({"neaptide": None}, "cannot be read"),
        ({"facts": []}, "cannot be read"),
        ({"files": []}, "cannot be read"),
        ({"more": 1}, "cannot be read"),
        ({"files": {"x": {"sha256": "0" * 64, "bytes": -1}}}, "no sha256 and size"),
        ({"files": {"x": {"sha256": "0" * 64, "bytes": 1.0}}}, "no sha256 and size"),
        ({"files": {"x": {"sha256": "0" * 63, "bytes": 1}}}, "no sha256 and size"),
        ({"files": {"x": {"sha256": "0" * 64, "bytes": 1, "y": 1}}}, "no sha256 and size"),
        ({"files": {"x": "0" * 64}}, "no sha256 and size"),
        (
            {"files": {f"x{n}": {"sha256": "0" * 64, "bytes": 1} for n in range(20_000)}},
            "19995 more",
        ),
    ],
)
def test_manifests(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    directory = craft(tmp_path / "c")
    value: dict[str, Any] = {"format": 1, "neaptide": "1", "step": 1, "files": {}, "facts": {}}
    sign(directory / "manifest.json", value | change)

    with rejected(why):
        load(directory)


def sign(path: Path, value: dict[str, Any]) -> None:
    sha256 = hashlib.sha256(canonical.dumps(value)).hexdigest()
    path.write_bytes(canonical.dumps(value | {"sha256": sha256}, indent=1) + b"\n")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[]", "not a manifest"),
        (b"{}", "damaged"),
        (b"{" + b" " * 2**22 + b"}", "4194306 bytes, at most 4194304"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"step": 1, "step": 2}', "a key occurs twice"),
        (b'{"step": 1' + b"0" * 5000 + b"}", "Exceeds the limit"),
    ],
)
def test_texts_of_a_manifest(tmp_path: Path, text: bytes, why: str) -> None:
    directory = craft(tmp_path / "c")
    (directory / "manifest.json").write_bytes(text)

    with rejected(why):
        load(directory)


def test_a_manifest_at_the_limit_of_recursion(tmp_path: Path) -> None:
    directory = craft(tmp_path / "c")
    for depth in range(1, 1000):
        text = b'{"facts": ' + b"[" * depth + b"]" * depth + b"}"
        (directory / "manifest.json").write_bytes(text)
        with pytest.raises(CheckpointError, match=r"damaged|nested too deeply"):
            load(directory)


@pytest.mark.parametrize(
    "structure",
    [
        b"[" * 500 + b"]" * 500,
        b'{"$tuple":[' * 400 + b"]}" * 400,
        b'{"$tensor": "../../x"}',
        b'{"$call": "os.system"}',
        b'{"a": Infinity}',
        b"[" + b"[]," * 500_001 + b"[]]",
    ],
)
def test_structures(tmp_path: Path, structure: bytes) -> None:
    directory = craft(tmp_path / "c", state_json=structure)

    with rejected(r"state\.json: "):
        load(directory).section("state")


def test_a_run_with_a_hostile_newest_checkpoint_goes_on_from_the_one_before(tmp_path: Path) -> None:
    good = craft(tmp_path / "step-00000001", state_json=b"1")
    bad = craft(tmp_path / "step-00000002")
    (bad / "manifest.json").write_bytes(pickled(tmp_path / "ran"))

    newest, warnings = newest_valid(tmp_path)

    assert good == newest
    assert [f"checkpoint step-00000002 is skipped: {verify(bad)[0]}"] == warnings
    assert {good, bad} == set(tmp_path.iterdir())


MEASURED = """
    import sys, time
    from pathlib import Path
    from neaptide.checkpoint import load
    from neaptide.errors import CheckpointError

    def peak():
        line = next(l for l in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in l)
        return int(line.split()[1]) * 1024

    load(Path(sys.argv[2])).sections()
    start = time.process_time()
    for number in range(2_000_000):
        pass
    longest = 50 * (time.process_time() - start)  # seconds, on any machine
    for directory in map(Path, sys.argv[3:]):
        Path("/proc/self/clear_refs").write_text("5")
        before, start = peak(), time.process_time()
        try:
            loaded = load(directory)
            loaded.section("w") if (directory / "w.json").exists() else loaded.tensors("w")
        except CheckpointError:
            size = sum(path.stat().st_size for path in directory.iterdir())
            taken = time.process_time() - start
            assert taken < longest, (directory, taken, longest)
            assert peak() - before < 2 * size + int(sys.argv[1]), (directory, peak() - before)
        else:
            raise AssertionError(directory)
"""


def measure(root: Path, **files: dict[str, bytes]) -> None:
    good = craft(root / "good", state_json=b"1")
    bad = [craft(root / f"{number}", **content) for number, content in enumerate(files.values())]
    command = [sys.executable, "-c", dedent(MEASURED), str(64 * 2**20), good, *bad]
    subprocess.run(command, check=True)


MANY_KEYS = b"{" + b",".join(b'"%d":0' % n for n in range(700_000)) + b"}"
EMPTY = json.dumps(entry(0, 0, 0)).encode()
HEADERS = {
    "brackets": b"[" * 20_000_000,
    "string": b'{"' + b"x" * 20_000_000 + b'":1}',
    "escapes": b'{"' + b"\\n" * 10_000_000 + b'":1}',
    "lists": b"[" + b"[]," * 400_000 + b"[]]",
    "tensors": b"{" + b",".join(b'"%d":%s' % (n, EMPTY) for n in range(90_000)) + b',"last":0}',
    "objects": b"[" + b"{}," * 499_000 + b"{}]",
    "keys": MANY_KEYS,
    "numbers": b"[" + b"1," * 990_000 + b"1]",
    "keys of one": b'{"a":' + MANY_KEYS + b"}",
    "keys of metadata": b'{"__metadata__":' + MANY_KEYS + b"}",
    "spaces": b'{"a"' + b" " * 20_000_000 + b":0}",
}
STRUCTURES = {
    "keys": MANY_KEYS,
    "spaced keys": MANY_KEYS.replace(b":", b" :"),
    "brackets": b"[" * 900_000,
    "refused at the end": b"{" + b",".join(b'"%d":0' % n for n in range(149_000)) + b',"$x":0}',
    "objects": b"[" + b"{}," * 499_000 + b'{"$x":0}]',
    "words": b"[" + b'"ab",' * 990_000 + b'{"$x":0}]',
    "numbers": b"[" + b"999," * 990_000 + b'{"$x":0}]',
}


def test_memory_stays_in_proportion_to_the_file(tmp_path: Path) -> None:
    headers = {name: {"w_safetensors": safetensors(text)} for name, text in HEADERS.items()}

    measure(tmp_path, **headers)


def test_memory_stays_in_proportion_to_a_structure(tmp_path: Path) -> None:
    measure(tmp_path, **{name: {"w_json": text} for name, text in STRUCTURES.items()})


def test_memory_stays_in_proportion_to_a_manifest(tmp_path: Path) -> None:
    good = craft(tmp_path / "good", state_json=b"1")
    bad = craft(tmp_path / "bad")
    (bad / "manifest.json").write_bytes(MANY_KEYS[: 2**22 - 10].rpartition(b",")[0] + b"}")

    subprocess.run([sys.executable, "-c", dedent(MEASURED), str(64 * 2**20), good, bad], check=True)


def test_more_keys_are_taken_where_the_checkpoint_is_larger(tmp_path: Path) -> None:
    many = {f"{n}": 0 for n in range(160_000)}

    with pytest.raises(CheckpointError, match="state: 160000 JSON keys, at most 15"):
        save(tmp_path / "c", {"state": many}, 1, {})
    save(tmp_path / "c", {"state": many, "large": torch.zeros(2**21)}, 1, {})

    assert many == load(tmp_path / "c").section("state")
