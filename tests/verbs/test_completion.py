"""`neaptide completion`: the script completes in a real shell, and installs where it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

COMPLETE = """
source completion.bash
COMP_WORDS=(neaptide "$@")
COMP_CWORD=$#
_neaptide
printf '%s\\n' "${COMPREPLY[@]}"
"""


def neaptide(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "neaptide", *arguments]
    environment = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["plu"], "plugins"),
        (["run", "--pre"], "--preset"),
        (["config", "sch"], "schema"),
        (["run", "--log", "js"], "json"),
        (["completion", "fi"], "fish"),
        (["run", "--preset", "tiny"], "tiny-cpu"),
        (["presets", "show", "tiny"], "tiny-cpu"),
        (["plugins", "show", "em"], "ema"),
        (["config", "convert", "--from", "de"], "deepspeed"),
        (["config", "convert", "--to", "ya"], "yaml"),
    ],
    ids=" ".join,
)
def test_bash_completes(tmp_path: Path, words: list[str], completed: str) -> None:
    script = neaptide("completion", "bash").stdout
    (tmp_path / "completion.bash").write_text(script, encoding="utf-8")
    command = ["bash", "-c", COMPLETE, "bash", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (f"{completed}\n", "") == (done.stdout, done.stderr)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_offered_names(shell: str) -> None:
    script = neaptide("completion", shell).stdout
    assert {"tiny-cpu", "ema", "deepspeed"} <= set(re.findall(r"[\w-]+", script))


def test_the_shell_is_the_one_of_the_user() -> None:
    done = neaptide("completion", "--json", SHELL="/usr/bin/fish")
    assert "fish" == json.loads(done.stdout)["shell"]
    assert neaptide("completion", "fish").stdout == json.loads(done.stdout)["script"]


def test_an_unknown_shell_is_one_line() -> None:
    done = neaptide("completion", SHELL="/bin/tcsh")
    assert (
        1,
        "error: cannot tell your shell from SHELL='/bin/tcsh'; name it: bash, zsh, fish\n",
    ) == (
        done.returncode,
        done.stderr,
    )


def test_install_says_where(tmp_path: Path) -> None:
    done = neaptide("completion", "bash", "--install", "--json", HOME=str(tmp_path))
    path = json.loads(done.stdout)["path"]
    assert path.startswith(str(tmp_path))
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - a path out of JSON
        assert neaptide("completion", "bash").stdout.strip() == file.read().strip()
