"""Converters that distributions ship: found, suggested, told apart; a broken one harms no other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from distributions import install
from support import environment as environment_with

from neaptide_verbs.convert.foreign import framework_of, frameworks

if TYPE_CHECKING:
    from pathlib import Path

GUEST = """
from neaptide_toolkit.foreign import Converter

def convert(source):
    return {"train": {"steps": source.take("rounds", int)}}

GUEST = Converter(convert, frozenset({"rounds"}))
RICH = Converter(convert, {"rich", "riches"})
OTHER = Converter(convert, ["laps"])
WRONG = Converter(lambda source: 5)
NOT = convert
"""
BROKEN = {
    "x-absent": ("x_nowhere:GUEST", "importing 'x_nowhere:GUEST' raised ModuleNotFoundError: "),
    "x-exits": ("x_quits:GUEST", "importing 'x_quits:GUEST' raised SystemExit: 3"),
    "x-not": ("x_framework:NOT", "'x_framework:NOT' must be a Converter (got function)"),
    "x-wrong": ("x_framework:WRONG", "it did not return a table but 5, an integer"),
}


@pytest.fixture
def site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where distributions are found: strangers' converters, most of which are broken."""
    site = folder / "site"
    entries = {name: target for name, (target, _) in BROKEN.items()}
    files = {"x_framework.py": GUEST, "x_quits.py": "import sys\nsys.exit(3)\n"}
    install(site, "x-broken", {"neaptide.converters": entries})
    guest = {"neaptide.converters": {"x-guest": "x_framework:GUEST", "x-rich": "x_framework:RICH"}}
    install(site, "x-framework", guest, files)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", environment_with(site)["PYTHONPATH"])
    (folder / "theirs.json").write_text(json.dumps({"rounds": 7, "other": 1}), encoding="utf-8")
    return site


@pytest.mark.usefixtures("site")
def test_a_strangers_framework_is_converted(neaptide: Any) -> None:
    done = neaptide("config", "convert", "theirs.json", "--from", "x-guest", "--json")
    printed = json.loads(done.out)
    assert {"version": 1, "train": {"steps": 7}} == printed["config"]
    assert ["other"] == [remark["key"] for remark in printed["remarks"]]


@pytest.mark.usefixtures("site")
def test_its_settings_are_known_by_its_signs(neaptide: Any) -> None:
    assert "x-guest" == framework_of({"rounds": 1})
    assert "deepspeed" == framework_of({"zero_optimization": {}})
    assert framework_of({"train": {}}) is None
    # By most of its signs: a stranger's may have a key of another framework's, too.
    assert "x-rich" == framework_of({"bf16": True, "rich": 1, "riches": 2})
    done = neaptide("config", "convert", "theirs.json", "--to", "toml")
    expected = "error: these are settings of x-guest; add --from x-guest in theirs.json\n"
    assert (2, expected) == (done.code, done.err)


@pytest.mark.usefixtures("site")
def test_it_is_suggested(neaptide: Any, command: Any) -> None:
    ours = {"axolotl", "deepspeed", "llama-factory", "torchtune"}
    assert {"x-guest", "x-rich", *ours, *BROKEN} == set(frameworks())
    assert "x-guest" in command("completion", "bash").out
    done = neaptide("config", "convert", "theirs.json", "--from", "x-guess")
    expected = "error: unknown framework 'x-guess' (did you mean 'x-guest'?)\n"
    assert (2, expected) == (done.code, done.err)


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_one_is_one_line_for_who_asks_for_it(neaptide: Any, name: str) -> None:
    done = neaptide("config", "convert", "theirs.json", "--from", name)
    (line,) = done.err.splitlines()
    start = f"error: framework {name!r} from x-broken 1.0 cannot be converted: {BROKEN[name][1]}"
    assert (2, start) == (done.code, line[: len(start)])


def test_two_of_one_name_are_refused_by_name(site: Path, neaptide: Any) -> None:
    rival = {"neaptide.converters": {"x-guest": "x_framework:OTHER"}}
    install(site, "x-rival", rival)
    done = neaptide("config", "convert", "theirs.json", "--from", "x-guest")
    (line,) = done.err.splitlines()
    assert 2 == done.code
    assert "x-framework 1.0" in line
    assert "x-rival 1.0" in line
    assert line.endswith("both ship a converter of this name; uninstall one")
    assert "deepspeed" == framework_of({"zero_optimization": {}})
    assert framework_of({"rounds": 1}) is None
