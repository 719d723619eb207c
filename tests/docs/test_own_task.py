"""The page about tasks of one's own: its two files train, and what it says of them holds."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import warm
from pages import ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "own-task.md"
TASK, CONFIG = (block.text for block in blocks(PAGE) if block.language in {"python", "toml"})


def run(folder: Path, task: str) -> warm.Done:
    (folder / "task.py").write_text(task, encoding="utf-8")
    (folder / "own.toml").write_text(CONFIG, encoding="utf-8")
    words = ["-m", "neaptide", "run", "own.toml", "--set", "train.steps=30"]
    return warm.run(words, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_the_task_trains(tmp_path: Path) -> None:
    done = run(tmp_path, TASK)
    assert 0 == done.returncode, done.stderr
    assert "validation loss" in done.stdout


def test_a_module_that_does_not_take_the_batch_is_told_how_it_was_called(tmp_path: Path) -> None:
    done = run(tmp_path, TASK.replace("return net, loss", "return net"))
    assert 1 == done.returncode
    assert "a batch must be a mapping for model(**batch).loss" in done.stderr
    keyed = TASK.replace("return net, loss", "return net").replace(
        "yield x, x.sin().sum(dim=1, keepdim=True)", 'yield {"x": x, "y": x}'
    )
    (tmp_path / "keyed").mkdir()
    done = run(tmp_path / "keyed", keyed)
    assert 1 == done.returncode
    last = done.stderr.splitlines()[-1]
    assert "called as model(**batch), and its forward does not take this batch" in last
    assert "(keys: x, y); pass loss_fn, or make the factory of model.name return" in last
