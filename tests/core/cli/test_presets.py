"""`neaptide presets`: what it lists, shows and copies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from neaptide.config import presets

if TYPE_CHECKING:
    from pathlib import Path


def test_a_preset_is_listed_shown_and_copied(neaptide: Any, folder: Path) -> None:
    text = presets.text("tiny-cpu")
    listed = neaptide("presets", "list")
    rows = [line.split(maxsplit=1) for line in listed.out.splitlines()]
    assert ["tiny-cpu", text.splitlines()[0].removeprefix("# ")] in rows
    assert "tiny-cpu" in {
        row["name"] for row in json.loads(neaptide("presets", "list", "--json").out)
    }
    assert text == neaptide("presets", "show", "tiny-cpu").out
    copied = neaptide("presets", "copy", "tiny-cpu")
    assert "copied to tiny-cpu.toml; run it with: neaptide run tiny-cpu.toml\n" == copied.out
    assert text == (folder / "tiny-cpu.toml").read_text(encoding="utf-8")
    assert 0 == neaptide("config", "check", "tiny-cpu.toml").code


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_copy_may_be_of_another_format(neaptide: Any, folder: Path, suffix: str) -> None:
    done = neaptide("presets", "copy", "tiny-cpu", f"mine.{suffix}")
    assert (0, "note: comments are not carried over\n") == (done.code, done.err)
    copied = neaptide("config", "show", f"mine.{suffix}").out
    assert neaptide("config", "show", "--preset", "tiny-cpu").out == copied
    assert (folder / f"mine.{suffix}").exists()


def test_a_copy_without_a_known_suffix_is_refused(neaptide: Any) -> None:
    done = neaptide("presets", "copy", "tiny-cpu", "mine.ini")
    expected = "error: only .toml, .json, .yaml and .yml are read (got '.ini')\n"
    assert (2, expected) == (done.code, done.err)


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_is_a_configuration(neaptide: Any, name: str) -> None:
    done = neaptide("config", "check", "--preset", name)
    assert (0, "") == (done.code, done.err)
    assert done.out.startswith("ok: ")


STACKS = [name for name in presets.names() if name.startswith("stack-")]


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_says_that_it_is_composed_and_runs_with_a_file(
    neaptide: Any, folder: Path, name: str
) -> None:
    assert presets.text(name).startswith("# Combine with your own file: ")
    assert f"neaptide run --preset {name} mine.toml" in presets.text(name)
    neaptide("presets", "copy", "tiny-cpu", "mine.toml")
    short = ("train.steps=2", "train.device=cpu", "eval.every=0", "eval.batches=1")
    sets = [argument for setting in short for argument in ("--set", setting)]
    done = neaptide("run", "--preset", name, "mine.toml", *sets, "--json")
    assert (0, 2) == (done.code, json.loads(done.out)["steps"])


def test_a_copy_never_overwrites(neaptide: Any, folder: Path) -> None:
    (folder / "mine.toml").write_text("precious", encoding="utf-8")
    done = neaptide("presets", "copy", "tiny-cpu", "mine.toml")
    assert (2, "error: mine.toml exists already; name another file\n") == (done.code, done.err)
    assert "precious" == (folder / "mine.toml").read_text(encoding="utf-8")


def test_a_copy_into_nowhere_is_one_line(neaptide: Any) -> None:
    done = neaptide("presets", "copy", "tiny-cpu", "no/such/mine.toml")
    expected = "error: cannot write no/such/mine.toml: No such file or directory\n"
    assert (2, expected) == (done.code, done.err)
