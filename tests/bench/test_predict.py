"""The bench of prediction: every file of it is a configuration, and one idea end to end."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from neaptide.config import load
from neaptide.hooks.enabling import configured
from neaptide.hooks.registry import installed_plugins

if TYPE_CHECKING:
    from collections.abc import Iterator

BENCH = Path(__file__).parents[2] / "bench"
TASKS = ("byte-gpt", "noisy-digits", "photo", "epochs", "finetune", "gpt-5m")
TRIED = BENCH / "predictions" / "tried"
OVERLAYS = sorted(path.stem for path in (BENCH / "predict").glob("*.toml"))


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    script = str(BENCH / "predict.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the plugins of ideas that are not shipped; what is installed is looked up once."""
    monkeypatch.syspath_prepend(TRIED)
    installed_plugins.cache_clear()
    yield
    installed_plugins.cache_clear()


@pytest.mark.usefixtures("tried")
@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("task", TASKS)
def test_every_file_is_read_alone_and_over_a_task(task: str, overlay: str) -> None:
    files = dict.fromkeys(BENCH / "predict" / f"{name}.toml" for name in (task, overlay))
    if overlay in TASKS and overlay != task:
        return
    configured(load(files, specs=installed_plugins()).config)


def test_a_model_is_made_once_and_then_fine_tuned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(BENCH)
    finetuning = importlib.import_module("predictions.finetuning")
    monkeypatch.setattr(finetuning, "STORE", tmp_path)
    short = tmp_path / "short"
    short.mkdir()
    for name in finetuning.FILES:
        text = (BENCH / "predict" / f"{name}.toml").read_text("utf-8")
        (short / f"{name}.toml").write_text(text.replace("steps = 2000", "steps = 3"), "utf-8")
    monkeypatch.setattr(finetuning, "HERE", short)
    with pytest.raises(FileNotFoundError, match=r"run `python bench/predictions/finetuning\.py`"):
        finetuning.pretrained()
    finetuning.main()
    made = finetuning.weights_file()
    stamp = made.stat().st_mtime_ns
    finetuning.main()
    assert stamp == made.stat().st_mtime_ns
    task, data = finetuning.pretrained(), finetuning.headers(4, 0, held_out=8)
    loss = task.loss_fn(task.module, next(iter(data.train)))
    assert 4 * 64 == loss.count
    assert 1 < loss.sum.item() / loss.count < 10
    assert 8 == sum(len(batch["tokens"]) for batch in data.validation)


@pytest.mark.slow
def test_an_idea_is_measured_and_added_to_what_is_known(tmp_path: Path) -> None:
    path = tmp_path / "predict.json"
    known = {
        "comparisons": [
            {
                "name": "photo",
                "idea": "other",
                "seeds": [1],
                "baseline_is_tuned": False,
                "command": "another",
            }
        ]
    }
    path.write_text(json.dumps(known), encoding="utf-8")
    quick = ["--set", "train.steps=40", "--set", "train.batch_size=32", "--jobs", 1, "--as-is"]
    done = run(
        *("--ideas", "drift", "--tasks", "photo", "--seeds", "7,8"),
        *("--out", tmp_path / "out", "--json", path, *quick),
    )
    assert 0 == done.returncode, done.stderr
    assert "== drift on photo" in done.stdout
    document = json.loads(path.read_text(encoding="utf-8"))
    made, other = document["comparisons"]
    assert ("other", "drift", [7, 8]) == (other["idea"], made["idea"], made["seeds"])
    assert [] == document["tasks"], "nothing was tuned, so that nothing is reported"
    assert {"baseline", "candidate"} == set(made["sides"])
    budgets: list[dict[str, Any]] = made["sides"]["baseline"]["budgets"]
    assert [28, 40, 57] == [at["passes"] for at in budgets]
    assert "--set train.steps=40" in made["command"]
    path.write_text(json.dumps({"comparisons": [made]}), encoding="utf-8")
    table = run("--json", path, "--table")
    assert 0 == table.returncode, table.stderr
    assert "| passes x | seeds | photo |" in table.stdout
    named = "drift train.steps=40 train.batch_size=32"
    assert 4 == table.stdout.count(f"| {named} | 7-8 | ")
    assert f"| {named}: baseline | 7-8 | " in table.stdout


def test_a_name_that_is_none_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    done = run("--ideas", "drift,drifts", "--out", tmp_path / "out")
    assert 2 == done.returncode
    assert "--ideas: 'drifts' is not one of drift, far," in done.stderr
    assert not (tmp_path / "out").exists()
