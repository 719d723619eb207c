"""`neaptide plugins`: manifests as text and JSON, and broken plugins with what is wrong."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from neaptide.hooks.registry import installed_plugins

if TYPE_CHECKING:
    from pathlib import Path

STRANGER = """
from __future__ import annotations
from typing import Literal
import attrs
from neaptide import PluginSpec, field

@attrs.frozen(kw_only=True)
class Config:
    rate: float | None = field(None, help="how fast")
    mode: Literal['a', 'b'] = field("b", help="which way")
    sizes: tuple[int, ...] = field((1, 2), help="how large")
    loud: bool = field(False, help="whether to tell")

SPEC = PluginSpec(
    name="stranger", load="stranger.plugin:Stranger", config=Config, summary="A guest.",
    claims={"predictor"}, requires={"profiler"}, phases={"predict"}, numerics="tolerance",
    rtol=1e-3, version=3)
BROKEN = 3
"""


@pytest.fixture
def site(tmp_path: Path) -> str:
    """Return a PYTHONPATH on which a distribution with a good and two broken plugins lies."""
    package = tmp_path / "site"
    info = package / "guests-2.1.dist-info"
    info.mkdir(parents=True)
    (package / "stranger.py").write_text(STRANGER, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guests\nVersion: 2.1\n")
    entries = "stranger = stranger:SPEC\nruin = stranger:BROKEN\ngone = nowhere:SPEC\n"
    (info / "entry_points.txt").write_text(f"[neaptide.plugins]\n{entries}")
    return os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))


PROBLEMS = {
    "gone": "importing 'nowhere:SPEC' raised ModuleNotFoundError: No module named 'nowhere'",
    "ruin": "'stranger:BROKEN' must be a PluginSpec (got int)",
}


def test_the_list_has_every_installed_plugin(neaptide: Any) -> None:
    found = installed_plugins().installed
    lines = neaptide("plugins", "list").out.splitlines()
    assert list(found) == [line.split()[0] for line in lines]
    summaries = {name: entry.spec.summary for name, entry in found.items() if entry.spec}
    rows = json.loads(neaptide("plugins", "list", "--json").out)
    assert summaries == {row["name"]: row["summary"] for row in rows if row["problem"] is None}


@pytest.mark.parametrize("name", sorted(installed_plugins().usable()))
def test_every_plugin_can_be_shown(neaptide: Any, name: str) -> None:
    done = neaptide("plugins", "show", name)
    spec = installed_plugins()[name]
    assert (0, "") == (done.code, done.err)
    phases = ", ".join(sorted(spec.phases)) or "all"
    assert ["phases", phases] in [line.split(maxsplit=1) for line in done.out.splitlines()]
    shown = json.loads(neaptide("plugins", "show", name, "--json").out)
    assert (spec.summary, sorted(spec.claims)) == (shown["summary"], shown["claims"])
    fields = attrs.fields(spec.config)
    assert {field.name: field.metadata["help"] for field in fields} == {
        setting["name"]: setting["help"] for setting in shown["settings"]
    }


def test_a_strangers_plugin_is_shown_whole(command: Any, site: str) -> None:
    done = command("plugins", "show", "stranger", PYTHONPATH=site)
    assert (0, "") == (done.code, done.err)
    assert [
        "name           stranger",
        "summary        A guest.",
        "distribution   guests 2.1",
        "class          stranger.plugin:Stranger",
        "state version  3",
        "claims         predictor",
        "requires       profiler",
        "phases         predict",
        "numerics       tolerance (rtol 0.001)",
        "observer       false",
        "",
        "[plugins.stranger]",
        "rate   not set   float | None       how fast",
        "mode   = \"b\"     Literal['a', 'b']  which way",
        "sizes  = [1, 2]  tuple[int, ...]    how large",
        "loud   = false   bool               whether to tell",
    ] == done.out.splitlines()


def test_broken_plugins_are_listed_with_their_problem(command: Any, site: str) -> None:
    done = command("plugins", "list", PYTHONPATH=site)
    lines = dict(line.split(maxsplit=1) for line in done.out.splitlines())
    assert lines["stranger"].split(maxsplit=2) == ["guests", "2.1", "A guest."]
    for name, problem in PROBLEMS.items():
        assert lines[name].split(maxsplit=2) == ["guests", "2.1", f"BROKEN: {problem}"]
    rows = json.loads(command("plugins", "list", "--json", PYTHONPATH=site).out)
    assert PROBLEMS == {row["name"]: row["problem"] for row in rows if row["problem"]}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_broken_plugin_cannot_be_shown(command: Any, site: str, name: str) -> None:
    done = command("plugins", "show", name, PYTHONPATH=site)
    expected = f"error: plugin {name!r} from guests 2.1 cannot be used: {PROBLEMS[name]}\n"
    assert (2, "", expected) == (done.code, done.out, done.err)


def test_an_unknown_plugin_is_one_line(neaptide: Any) -> None:
    done = neaptide("plugins", "show", "profilr")
    expected = "error: plugin 'profilr' is not installed (did you mean 'profiler'?)"
    assert (2, f"{expected}; see plugins list\n") == (done.code, done.err)
