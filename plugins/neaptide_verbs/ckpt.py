"""`neaptide ckpt`: list checkpoints and verify every byte of them, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cyclopts import App

from neaptide.checkpoint import checkpoints, read_manifest, verify
from neaptide.checkpoint.manifest import MANIFEST, STEP
from neaptide.cli.output import AsJson, print_json, print_table, print_text
from neaptide.errors import CheckpointError, ConfigError, WrongCheckpointError
from neaptide.io.units import size

app = App(name="ckpt", help="List and verify checkpoints.")


@app.command(name="list")
def list_(path: Path, /, *, json: AsJson = False) -> None:
    """List the checkpoints of a run, oldest first."""
    rows = [_listed(directory) for directory in _found_in(path)]
    if json:
        print_json(rows)
        return
    print_table(
        [
            (row["path"], "DAMAGED", row["problem"], "")
            if "problem" in row
            else (row["path"], f"step {row['step']}", str(row["phase"]), size(row["bytes"]))
            for row in rows
        ]
    )


@app.command(name="verify")
def verify_(*paths: Path, json: AsJson = False) -> int:
    """Compare every file with its digest.

    The exit code is 1 if a file is damaged, and 2 if a path has no checkpoint.
    """
    if not paths:
        msg = "give a checkpoint, a folder of them or a run directory"
        raise ConfigError(msg)
    problems: dict[str, list[str]] = {}
    absent: set[str] = set()
    for path in paths:
        try:
            problems |= {str(directory): verify(directory) for directory in _found_in(path)}
        except WrongCheckpointError as error:  # reported after the other paths are verified
            problems[str(path)] = [str(error)]
            absent.add(str(path))
    if json:
        print_json([{"path": path, "problems": found} for path, found in problems.items()])
    else:
        print_text(
            "\n".join(
                f"{path}: {_within(path, line)}"
                for path, found in problems.items()
                for line in found or ["ok"]
            )
        )
    damaged = any(found for path, found in problems.items() if path not in absent)
    return 1 if damaged else 2 * bool(absent)


def _within(checkpoint: str, problem: str) -> str:
    """Return the text `problem`, but make its file names relative to the checkpoint."""
    return problem.removeprefix(f"{checkpoint}: ").replace(f"{checkpoint}/", "")


def _found_in(path: Path) -> list[Path]:
    """Return the checkpoints at `path`: a checkpoint, a folder of them, or a run directory."""
    try:
        # If the manifest is lost, the folder's name still identifies a checkpoint.
        if (path / MANIFEST).exists() or (path.is_dir() and STEP.fullmatch(path.name)):
            return [path]
        for root in (path / "checkpoints", path):
            found = checkpoints(root)
            if found:
                return found
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror}; give a readable directory"
        raise WrongCheckpointError(msg) from error
    msg = (
        f"there is no checkpoint in {path}; give a checkpoint, a folder of them or a run directory"
    )
    raise WrongCheckpointError(msg)


def _listed(directory: Path) -> dict[str, Any]:
    try:
        manifest = read_manifest(directory)
    except CheckpointError as error:
        return {"path": str(directory), "problem": str(error)}
    return {
        "path": str(directory),
        "step": manifest.step,
        "phase": manifest.facts.get("phase"),
        "bytes": sum(entry.bytes for entry in manifest.files.values()),
        "neaptide": manifest.neaptide,
    }
