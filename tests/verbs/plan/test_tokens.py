"""`neaptide plan --model … --tokens …`: a model of transformers without a configuration file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from huggingface_families import saved
from plans import neaptide

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = ("--device", "rtx4090", "--ram", "64")


def planned(folder: Path, tokens: str, *more: str) -> Any:
    name = f"hf:{folder / 'model'}"
    return neaptide(folder, "plan", "--model", name, "--tokens", tokens, *MACHINE, *more)


def test_the_memory_grows_with_the_tokens(tmp_path: Path) -> None:
    saved("llama", tmp_path / "model")
    needed = {}
    for tokens in ("16x64", "32x128"):
        done = planned(tmp_path, tokens, "--json")
        assert done.returncode == 0, done.stderr
        plan = json.loads(done.stdout)
        needed[tokens] = plan["tiers"]["device"]["moments"]["full backward"]
        length, rows = map(int, tokens.split("x"))
        assert plan["tokens_per_second"] * plan["seconds_per_step"] == pytest.approx(length * rows)
    assert needed["16x64"] * 2 < needed["32x128"] < needed["16x64"] * 5


def test_settings_and_a_file_go_with_it(tmp_path: Path) -> None:
    saved("llama", tmp_path / "model")
    (tmp_path / "mine.toml").write_text("version = 1\n[plugins.adam8bit]\n")
    done = planned(tmp_path, "16x8", "--set", "model.options.dtype=bfloat16", "mine.toml")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("tokens", ["4096", "0x8", "8x", "4096x8x2", "4k"])
def test_tokens_of_another_form_are_told(tokens: str, tmp_path: Path) -> None:
    done = planned(tmp_path, tokens)
    assert done.returncode == 2
    assert done.stderr.startswith("error: tokens are LENGTHxROWS of a batch, such as 4096x8 (got ")
    assert done.stderr.count("\n") == 1


def test_what_has_no_data_is_not_written(tmp_path: Path) -> None:
    done = planned(tmp_path, "16x8", "--write", "new.toml")
    assert (done.returncode, done.stderr) == (
        2,
        "error: a configuration to run needs data: write it from a file with [data] @ --write\n",
    )
    assert not (tmp_path / "new.toml").exists()
