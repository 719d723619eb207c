"""The page about diffusion models: its task trains, and its table is that of the plans."""

from __future__ import annotations

import json
import sys
import tomllib
from typing import TYPE_CHECKING

from pages import ROOT, blocks, text_of

from neaptide.cli.app import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PAGE = ROOT / "docs" / "integrations" / "diffusers.md"


def test_the_task_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {block.file: block.text for block in blocks(PAGE) if block.file}
    assert {"noise.py", "noise.toml"} == files.keys()
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert 0 == main(["run", "noise.toml", "--set", "train.steps=2"])
    monkeypatch.delitem(sys.modules, "noise")
    assert "training loss" in capsys.readouterr().out


def test_the_table_is_that_of_the_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    import diffusion_plans

    monkeypatch.delitem(sys.modules, "diffusion_plans")
    known = json.loads(text_of(diffusion_plans.PLANS))
    assert list(diffusion_plans.WAYS) == list(known)
    page = text_of(PAGE)
    assert page == diffusion_plans.rendered(page, known)
    streamed = tomllib.loads(text_of(diffusion_plans.EXAMPLE))["plugins"]
    assert streamed == diffusion_plans.WAYS["streamed, as in the file"]["plugins"]
