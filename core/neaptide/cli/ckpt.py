"""`neaptide ckpt`: list checkpoints and verify every byte of them, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cyclopts import App

from neaptide.checkpoint import checkpoints, read_manifest, verify
from neaptide.errors import CheckpointError

from .output import AsJson, print_json, print_table, print_text, size

app = App(name="ckpt", help="List and verify checkpoints.")


def found_in(path: Path) -> list[Path]:
    """Return the checkpoints at `path`: one itself, a folder of them, or a run directory."""
    if (path / "manifest.json").exists():
        return [path]
    for root in (path / "checkpoints", path):
        if root.is_dir() and checkpoints(root):
            return checkpoints(root)
    msg = f"there is no checkpoint in {path}; give a run directory or a checkpoint"
    raise CheckpointError(msg)


@app.command(name="list")
def list_(path: Path, *, json: AsJson = False) -> None:
    """List the checkpoints of a run, oldest first."""
    rows: list[dict[str, Any]] = []
    for directory in found_in(path):
        try:
            manifest = read_manifest(directory)
        except CheckpointError as error:
            rows.append({"path": str(directory), "problem": str(error)})
            continue
        rows.append(
            {
                "path": str(directory),
                "step": manifest.step,
                "phase": manifest.facts.get("phase"),
                "bytes": sum(entry.bytes for entry in manifest.files.values()),
                "neaptide": manifest.neaptide,
            }
        )
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
    """Compare every file with its digest; exit code 1 if anything is damaged."""
    if not paths:
        msg = "give a run directory or a checkpoint"
        raise CheckpointError(msg)
    problems = {str(directory): verify(directory) for path in paths for directory in found_in(path)}
    if json:
        print_json([{"path": path, "problems": found} for path, found in problems.items()])
    else:
        for path, found in problems.items():
            print_text(f"{path}: {'; '.join(found) if found else 'ok'}")
    return 1 if any(problems.values()) else 0
