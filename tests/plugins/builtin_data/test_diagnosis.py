"""What the doctor is told of the data sets' sources."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from neaptide_plugins.builtin_data import diagnosis

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_sources_here_are_found() -> None:
    sources, digits = diagnosis.findings()
    assert ("ok", "python-stdlib") == (sources.level, sources.what)
    there = importlib.util.find_spec("sklearn") is not None
    assert ("ok" if there else "note", "digits") == (digits.level, digits.what)


def test_a_python_without_sources(tmp_path: Path) -> None:
    sources, _ = diagnosis.findings(tmp_path)
    assert ("warning", f"no .py sources in {tmp_path}") == (sources.level, sources.detail)
    assert sources.advice is not None
    assert "builtin:text-file" in sources.advice


def test_without_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code.py").write_text("1\n", encoding="utf-8")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    sources, digits = diagnosis.findings(tmp_path)
    assert f"1 source files in {tmp_path}" == sources.detail
    assert ("note", 'pip install "neaptide[digits]"') == (digits.level, digits.advice)
