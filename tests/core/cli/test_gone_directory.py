"""A current directory that is deleted, before a command or during it, is one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import warm
from command_line import TASK

from neaptide.cli import main
from neaptide.cli.app import build_app

if TYPE_CHECKING:
    from pathlib import Path

WHY = "the current directory cannot be read: No such file or directory; change to another directory"
VANISHING = f"""{TASK}
def vanishing(at):
    import os, shutil
    module, loss_fn = model()
    calls = []
    def count(*_):
        calls.append(1)
        if len(calls) == at:
            shutil.rmtree(os.getcwd())
    module.register_forward_hook(count)
    return module, loss_fn
"""
VERBS = [name for name in build_app() if not name.startswith("-")]


@pytest.mark.parametrize("verb", VERBS)
def test_a_directory_that_was_deleted_before_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert 2 == main([verb, "tiny.toml"])
    assert ("", f"error: {WHY}\n") == tuple(capsys.readouterr())


@pytest.mark.parametrize(("verb", "at"), [("run", 1), ("run", 9), ("compare", 9)])
def test_a_directory_that_is_deleted_meanwhile_is_one_line(
    folder: Path, environment: dict[str, str], verb: str, at: int
) -> None:
    (folder / "tiny_task.py").write_text(VANISHING, encoding="utf-8")
    sets = ("--set=model.name=tiny_task:vanishing", f"--set=model.options.at={at}")
    more = ("--seeds=7", "--baseline=as-is", "--jobs=1") if verb == "compare" else ()
    words = ["-m", "neaptide", verb, "tiny.toml", *sets, *more]
    done = warm.run(words, cwd=folder, env=environment)
    assert 1 == done.returncode, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "No such file or directory" in line
    assert verb == "compare" or f"error: {WHY}" == line
