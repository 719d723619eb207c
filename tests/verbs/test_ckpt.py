"""`neaptide ckpt`: listing and verifying real checkpoints, whole and damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import tiny_trainer

from neaptide.checkpoint import checkpoints

if TYPE_CHECKING:
    from collections.abc import Callable

WHERE = "give a checkpoint, a folder of them or a run directory"


@pytest.fixture
def run(folder: Path) -> Path:
    """Return a run directory with the checkpoints of updates 2 and 4, as a relative path."""
    config = {"run": {"dir": "run", "checkpoint_every": 2}, "train": {"steps": 4}}
    trainer, batches = tiny_trainer(config)
    with trainer:
        trainer.fit(batches)
    assert (folder / "run").is_dir()
    return Path("run")


FIRST, SECOND = "run/checkpoints/step-00000002", "run/checkpoints/step-00000004"


def flip(run: Path) -> str:
    """Flip a bit of the newest weights; return the problem."""
    path = checkpoints(run / "checkpoints")[-1] / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    return "weights.safetensors: damaged, its sha256 does not match"


def lose_the_manifest(run: Path) -> str:
    """Delete the newest manifest; return the problem."""
    (checkpoints(run / "checkpoints")[-1] / "manifest.json").unlink()
    return "manifest.json: No such file or directory"


def cut_the_last_newline(run: Path) -> str:
    """Shorten the newest manifest by a byte that means nothing; return the problem."""
    path = checkpoints(run / "checkpoints")[-1] / "manifest.json"
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    return "manifest.json: damaged, it is not byte for byte what was written"


def test_the_checkpoints_of_a_run_are_listed(neaptide: Any, run: Path) -> None:
    rows = [line.split() for line in neaptide("ckpt", "list", run).out.splitlines()]
    assert [
        [FIRST, "step", "2", "full"],
        [SECOND, "step", "4", "full"],
    ] == [row[:4] for row in rows]
    as_json = json.loads(neaptide("ckpt", "list", run / "checkpoints", "--json").out)
    assert [(FIRST, 2, "full"), (SECOND, 4, "full")] == [
        (row["path"], row["step"], row["phase"]) for row in as_json
    ]
    stored = sum(path.stat().st_size for path in Path(FIRST).iterdir())
    manifest = (Path(FIRST) / "manifest.json").stat().st_size
    assert stored - manifest == as_json[0]["bytes"]


@pytest.mark.parametrize("path", ["run", "run/checkpoints"])
def test_whole_checkpoints_are_ok(neaptide: Any, run: Path, path: str) -> None:
    done = neaptide("ckpt", "verify", path)
    assert (0, f"{FIRST}: ok\n{SECOND}: ok\n", "") == (done.code, done.out, done.err)


def test_one_checkpoint_is_verified(neaptide: Any, run: Path) -> None:
    assert f"{SECOND}: ok\n" == neaptide("ckpt", "verify", SECOND).out


@pytest.mark.parametrize("damage", [flip, lose_the_manifest, cut_the_last_newline])
@pytest.mark.parametrize("path", ["run", "run/checkpoints", SECOND])
def test_damage_is_named(
    neaptide: Any, run: Path, damage: Callable[[Path], str], path: str
) -> None:
    problem = damage(run)
    done = neaptide("ckpt", "verify", path)
    lines = [line for line in done.out.splitlines() if line.startswith(f"{SECOND}: ")]
    assert (1, 1) == (done.code, len(lines))
    assert problem in lines[0]
    assert 1 == lines[0].count(SECOND)
    as_json = json.loads(neaptide("ckpt", "verify", path, "--json").out)
    (row,) = [row for row in as_json if row["problems"]]
    assert (SECOND, 1) == (row["path"], len(row["problems"]))
    assert problem in row["problems"][0]


def test_every_damaged_file_is_listed(neaptide: Any, run: Path) -> None:
    flip(run)
    (Path(SECOND) / "stray.bin").write_bytes(b"")
    (Path(FIRST) / "weights.safetensors").unlink()
    done = neaptide("ckpt", "verify", run, "nowhere")
    lines = done.out.splitlines()
    assert (1, 4) == (done.code, len(lines))
    assert [FIRST, SECOND, SECOND, "nowhere"] == [line.partition(":")[0] for line in lines]
    assert f"nowhere: there is no checkpoint in nowhere; {WHERE}" == lines[-1]


def test_a_damaged_manifest_is_listed(neaptide: Any, run: Path) -> None:
    (Path(FIRST) / "manifest.json").write_text("{}", encoding="utf-8")
    lines = neaptide("ckpt", "list", run).out.splitlines()
    assert ["DAMAGED", "step"] == [line.split()[1] for line in lines]


@pytest.mark.parametrize("path", ["nowhere", "."])
def test_a_path_without_checkpoints_is_one_line(neaptide: Any, path: str) -> None:
    done = neaptide("ckpt", "list", path)
    expected = f"error: there is no checkpoint in {path}; {WHERE}\n"
    assert (2, "", expected) == (done.code, done.out, done.err)
    verified = neaptide("ckpt", "verify", path)
    assert 2 == verified.code


def test_a_path_that_cannot_be_looked_at_is_one_line(neaptide: Any) -> None:
    done = neaptide("ckpt", "list", "long" * 99)
    (line,) = done.err.splitlines()
    assert line.endswith(": File name too long; give a readable directory")


def test_nothing_to_verify_is_a_usage_error(neaptide: Any) -> None:
    done = neaptide("ckpt", "verify")
    assert (2, f"error: {WHERE}\n") == (done.code, done.err)
