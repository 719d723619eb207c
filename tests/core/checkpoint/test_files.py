"""Writing a checkpoint directory: what it holds, what it replaces, what it refuses."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from neaptide.checkpoint import FileEntry, read_manifest, recover, verify, writing
from neaptide.errors import CheckpointError


def write(directory: Path, content: bytes = b"content", step: int = 3) -> None:
    with writing(directory, step, {"phase": "full"}) as writer, writer.file("data.bin") as file:
        file.write(content)


def fail(directory: Path, error: type[BaseException]) -> None:
    with writing(directory, 4, {}) as writer:
        writer.file("data.bin").write(b"new")
        raise error


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_the_manifest_describes_the_files(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b", b"abc")

    manifest = read_manifest(tmp_path / "a" / "b")

    assert (3, {"phase": "full"}) == (manifest.step, manifest.facts)
    assert {"data.bin": FileEntry(hashlib.sha256(b"abc").hexdigest(), 3)} == manifest.files
    assert {"manifest.json", "data.bin"} == names(tmp_path / "a" / "b")
    assert [] == verify(tmp_path / "a" / "b")
    assert {"b"} == names(tmp_path / "a")


def test_the_digest_of_the_manifest_covers_the_rest_of_it(tmp_path: Path) -> None:
    write(tmp_path / "a")

    value = json.loads((tmp_path / "a" / "manifest.json").read_text())

    claimed = value.pop("sha256")
    rest = json.dumps(value, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(rest.encode()).hexdigest() == claimed
    assert {"format", "neaptide", "step", "files", "facts"} == value.keys()


def test_files_left_open_are_finished(tmp_path: Path) -> None:
    with writing(tmp_path / "a", 1, {}) as writer:
        file = writer.file("data.bin")
        assert 3 == file.write(memoryview(b"abc"))
        assert 8 == file.write(memoryview(bytearray(8)).cast("d"))

    assert [] == verify(tmp_path / "a")
    assert b"abc" + bytes(8) == (tmp_path / "a" / "data.bin").read_bytes()
    with pytest.raises(ValueError, match="closed"):
        file.write(b"late")


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = len(names(Path("/proc/self/fd")))
    write(tmp_path / "a")
    write(tmp_path / "a")
    assert [] == verify(tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        fail(tmp_path / "a", KeyboardInterrupt)

    assert before == len(names(Path("/proc/self/fd")))


def test_replacing_leaves_only_the_new(tmp_path: Path) -> None:
    write(tmp_path / "a", b"old")
    write(tmp_path / "a", b"new")

    assert b"new" == (tmp_path / "a" / "data.bin").read_bytes()
    assert {"a"} == names(tmp_path)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, CheckpointError, SystemExit])
def test_an_exception_leaves_the_old(tmp_path: Path, error: type[BaseException]) -> None:
    write(tmp_path / "a", b"old")

    with pytest.raises(error):
        fail(tmp_path / "a", error)

    assert b"old" == (tmp_path / "a" / "data.bin").read_bytes()
    assert [] == verify(tmp_path / "a")
    assert {"a"} == names(tmp_path)


def test_an_oserror_of_the_body_becomes_a_checkpoint_error(tmp_path: Path) -> None:
    with (
        pytest.raises(
            CheckpointError, match=r"cannot write checkpoint .*/a: No such file"
        ) as caught,
        writing(tmp_path / "a", 4, {}),
    ):
        (tmp_path / "missing").read_bytes()

    assert isinstance(caught.value.__cause__, FileNotFoundError)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "/etc/x", "a/b", ".hidden", "a\0b", "a b", "é", "manifest.json"]
)
def test_bad_names(tmp_path: Path, name: str) -> None:
    with (
        pytest.raises(CheckpointError, match="cannot name a file"),
        writing(tmp_path / "a", 1, {}) as writer,
    ):
        writer.file(name)

    assert set() == names(tmp_path)


def test_a_name_twice(tmp_path: Path) -> None:
    with writing(tmp_path / "a", 1, {}) as writer:
        writer.file("x")
        with pytest.raises(CheckpointError, match="already has a file 'x'"):
            writer.file("x")


@pytest.mark.parametrize(
    "facts", [{"x": float("nan")}, {"x": (1, 2)}, {"x": {1: 2}}, {"x": {1, 2}}, {1: 2}]
)
def test_facts_that_are_not_json(tmp_path: Path, facts: dict[str, object]) -> None:
    with (
        pytest.raises(CheckpointError, match="must be plain JSON"),
        writing(tmp_path / "a", 1, facts),
    ):
        pass

    assert set() == names(tmp_path)


def test_facts_too_long_for_a_manifest(tmp_path: Path) -> None:
    write(tmp_path / "a", b"old")

    with (
        pytest.raises(CheckpointError, match="at most 4194304"),
        writing(tmp_path / "a", 1, {"x": "x" * 2**22}),
    ):
        pass

    assert [] == verify(tmp_path / "a")


def test_a_directory_that_is_no_checkpoint_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "manifest.json").write_text("{}")

    with pytest.raises(CheckpointError, match=r"thesis exists and is not a checkpoint"):
        write(tmp_path / "thesis")

    assert "{}" == (tmp_path / "thesis" / "manifest.json").read_text()


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    (tmp_path / ".old-b").write_text("")

    for name in ("a", "b"):
        with pytest.raises(CheckpointError, match="exists and is not a checkpoint"):
            write(tmp_path / name)
    with pytest.raises(CheckpointError, match=r"cannot write checkpoint .*/a/b: "):
        write(tmp_path / "a" / "b")


def test_a_name_without_room_for_the_temporary(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="File name too long; check the disk or"):
        write(tmp_path / ("x" * 250))


def test_an_empty_directory_and_a_damaged_step_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "step-00000001").mkdir()
    (tmp_path / "step-00000001" / "half").write_bytes(b"x")

    write(tmp_path / "empty")
    write(tmp_path / "step-00000001", step=1)

    assert [[], []] == [verify(tmp_path / "empty"), verify(tmp_path / "step-00000001")]
    assert {"empty", "step-00000001"} == names(tmp_path)


def test_a_symlink_to_a_checkpoint_stays_one(tmp_path: Path) -> None:
    write(tmp_path / "real", b"old")
    (tmp_path / "link").symlink_to("real")

    write(tmp_path / "link", b"new")

    assert b"new" == (tmp_path / "real" / "data.bin").read_bytes()
    assert {"real", "link"} == names(tmp_path)


def test_strays_of_dead_processes_are_cleared(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        for pid in (dead_pid(), zombie.pid, os.getpid()):
            path = tmp_path / f".tmp-step-00000001-{pid}-0123abcd.neaptide"
            path.mkdir()
            (path / "half").write_bytes(b"x")
        write(tmp_path / "step-00000001", step=1)
        assert {"step-00000001"} == names(tmp_path)


def test_what_was_replaced_is_cleared(tmp_path: Path) -> None:
    write(tmp_path / "step-00000002", step=2)
    shutil.copytree(tmp_path / "step-00000002", tmp_path / ".old-step-00000002")

    write(tmp_path / "step-00000003")

    assert {"step-00000002", "step-00000003"} == names(tmp_path)


def test_what_belongs_to_others_stays(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        kept = {
            f".tmp-a-{living.pid}-0123abcd.neaptide",
            f".tmp-a-{dead_pid()}-0123abcd",
            ".old-thesis",
            "thesis",
            ".old-step-00000009",
        }
        for name in kept:
            (tmp_path / name).mkdir()
        write(tmp_path / "a")
        assert kept | {"a"} == names(tmp_path)
        living.communicate(b"\n")


def test_two_saves_side_by_side(tmp_path: Path) -> None:
    with writing(tmp_path / "a", 1, {}) as first, writing(tmp_path / "b", 2, {}) as second:
        first.file("x").write(b"1")
        second.file("x").write(b"2")

    assert [[], []] == [verify(tmp_path / "a"), verify(tmp_path / "b")]
    assert {"a", "b"} == names(tmp_path)


def test_recover_puts_the_previous_back_if_there_is_no_new_one(tmp_path: Path) -> None:
    write(tmp_path / "a", b"old")
    (tmp_path / "a").rename(tmp_path / ".old-a")

    recover(tmp_path / "a")
    recover(tmp_path / "a")
    recover(tmp_path / "b")

    assert {"a"} == names(tmp_path)
    assert [] == verify(tmp_path / "a")


def test_recover_leaves_the_new_one_alone(tmp_path: Path) -> None:
    write(tmp_path / "a", b"new")
    write(tmp_path / "b", b"old")
    (tmp_path / "b").rename(tmp_path / ".old-a")

    recover(tmp_path / "a")

    assert {"a", ".old-a"} == names(tmp_path)
    assert b"new" == (tmp_path / "a" / "data.bin").read_bytes()


def test_no_torch(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib, neaptide.checkpoint as checkpoint\n"
        "with checkpoint.writing(pathlib.Path(sys.argv[1]), 1, {}): pass\n"
        "assert not checkpoint.verify(pathlib.Path(sys.argv[1]))\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path / "a"], check=True)
