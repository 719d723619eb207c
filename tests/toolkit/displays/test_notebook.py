"""When a notebook shows a bar, and whose display is shown where somebody ships one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from distributions import install
from notebooks import cells_of
from support import tiny_trainer

if TYPE_CHECKING:
    from pathlib import Path

SETUP = """
import torch
from torch import nn
from neaptide import HybridTrainer

def fit(data, progress="auto", observe=None):
    config = {"train": {"steps": 9}, "run": {"progress": progress}}
    loss_fn = lambda model, batch: model(batch).square().mean()
    with HybridTrainer(nn.Linear(4, 1), loss_fn=loss_fn, config=config) as trainer:
        trainer.fit(data, observe=observe)

def short():
    yield torch.ones(2, 4)
    yield torch.ones(2, 4)
    raise OSError("no more")
"""


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return the cells of a notebook that fits in several ways."""
    folder = tmp_path_factory.mktemp("nb")
    make = nbformat.v4
    notebook = make.new_notebook(
        cells=[
            make.new_code_cell(SETUP),
            make.new_code_cell("fit([torch.ones(2, 4)])"),
            make.new_code_cell("fit([torch.ones(2, 4)], progress='quiet')"),
            make.new_code_cell("fit([torch.ones(2, 4)], observe=lambda result, state: None)"),
            make.new_code_cell("fit(short())", metadata={"tags": ["raises-exception"]}),
        ]
    )
    nbformat.write(notebook, folder / "written.ipynb")
    return cells_of(folder / "written.ipynb", folder)


def test_fit_shows_a_bar_unless_told_otherwise(cells: list[Any]) -> None:
    _, shown, quiet, observed, _ = cells
    (bar,) = shown.outputs
    assert bar.data["text/plain"].startswith("full     9/9  loss ")
    assert [] == quiet.outputs == observed.outputs


def test_the_bar_of_a_run_that_failed_stays_at_its_last_update(cells: list[Any]) -> None:
    bar, error = cells[-1].outputs
    assert bar.data["text/plain"].startswith("full     2/9  loss ")
    assert ("error", "DataError") == (error.output_type, error.ename)


def test_a_script_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    trainer, batches = tiny_trainer({"train": {"steps": 3}})
    with trainer:
        trainer.fit(batches)
    assert ("", "") == capfd.readouterr()


STRANGER = """
from contextlib import contextmanager

seen = []

@contextmanager
def showing():
    yield lambda result, state: seen.append(result.step)
    seen.append("over")

def display(*, config, style, device, stream):
    return showing() if style == "auto" and stream is None else None
"""


def test_a_display_that_somebody_ships_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = {"neaptide.displays": {"wall": "display_of_a_wall:display"}}
    install(tmp_path, "display-of-a-wall", entries, {"display_of_a_wall.py": STRANGER})
    monkeypatch.syspath_prepend(tmp_path)
    trainer, batches = tiny_trainer({"train": {"steps": 3}})
    with trainer:
        trainer.fit(batches)
    import display_of_a_wall  # type: ignore[import-not-found]  # just installed

    assert [1, 2, 3, "over"] == display_of_a_wall.seen


def test_a_display_that_cannot_be_imported_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(tmp_path, "broken-display", {"neaptide.displays": {"broken": "not_there:display"}})
    monkeypatch.syspath_prepend(tmp_path)
    trainer, batches = tiny_trainer({"train": {"steps": 3}})
    with trainer:
        assert 3 == trainer.fit(batches)["steps"]
    assert "display 'broken' of broken-display 1.0: importing" in caplog.text
