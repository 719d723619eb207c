"""The example notebook, run by a kernel as its reader runs it."""

from __future__ import annotations

import re
from typing import Any

import nbformat
import pytest
from notebooks import cells_of
from pages import ROOT

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


def written() -> Any:
    """Return the notebook as it is in the repository."""
    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return the cells with code, after a kernel ran all of them in a folder of its own."""
    return cells_of(NOTEBOOK, tmp_path_factory.mktemp("nb"))


def shown(cells: list[Any], begins: str) -> list[Any]:
    """Return the outputs of the one cell whose code begins so."""
    (cell,) = [cell for cell in cells if cell.source.startswith(begins)]
    return list(cell.outputs)


def test_it_is_committed_without_outputs() -> None:
    notebook = written()
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [] == [cell.source for cell in code if cell.outputs or cell.execution_count]


def test_every_cell_runs_and_none_writes_to_stderr(cells: list[Any]) -> None:
    assert list(range(1, len(cells) + 1)) == [cell.execution_count for cell in cells]
    names = [output.get("name") for cell in cells for output in cell.outputs]
    assert "stderr" not in names


def test_fit_shows_a_bar_that_ends_at_the_last_update(cells: list[Any]) -> None:
    bar, result = shown(cells, "summary = trainer.fit(data)")
    assert "display_data" == bar.output_type
    assert '<progress value="600" max="600"' in bar.data["text/html"]
    first, *lines = bar.data["text/plain"].split("\n")
    assert re.fullmatch(r"full +600/600  loss \S+  lr 0.002  .* left  jumps 3  .*  host .*", first)
    assert "step 600  validation loss " in lines[-1]
    assert any(re.fullmatch(r"step \d+  jump over 10 updates accepted", line) for line in lines)
    assert result.data["text/plain"].startswith("Summary(steps=600, val_loss=")


def test_the_memory_table_is_printed(cells: list[Any]) -> None:
    (table,) = shown(cells, 'print(trainer.estimate_memory("full"))')
    assert table.text.startswith("device  peak ")
    assert re.search(r"(?m)^device  gradients +core +\S+ KiB  backward, update$", table.text)


def test_the_report_is_shown_as_a_page_without_scripts(cells: list[Any]) -> None:
    (page,) = shown(cells, "trainer.close()")
    html = page.data["text/html"]
    assert html.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
    assert " sandbox " in html
    assert "finished" in html
    assert "script" not in html
    assert page.data["text/plain"].startswith("RunPage(")
