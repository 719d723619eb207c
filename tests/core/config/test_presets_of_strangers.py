"""Presets of installed distributions: found, told apart; one that is broken harms no other."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
import warm
from distributions import install
from support import environment

if TYPE_CHECKING:
    from pathlib import Path

PRESET = "# {headline}\nversion = 1\n\n[train]\nsteps = {steps}\n"


def presets_of(site: Path, name: str, target: str, **presets: str) -> None:
    """Install a distribution whose package `target` holds these presets."""
    files = {f"{target}/{preset}.toml": text for preset, text in presets.items()}
    files |= {f"{target}/__init__.py": "", f"{target}/notes.txt": "no preset"} if presets else {}
    install(site, name, {"neaptide.presets": {name: target}}, files)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where strangers' presets of every kind are installed."""
    site = tmp_path_factory.mktemp("site")
    for number, (name, both) in enumerate([("x-one", "first"), ("x-two", "second")], 1):
        presets = {
            f"{name}-own": PRESET.format(headline=f"The {both}.", steps=number),
            "x-both": PRESET.format(headline="Of two.", steps=9),
        }
        presets_of(site, name, name.replace("-", "_"), **presets)
    mine = PRESET.format(headline="Takes a name that ships.", steps=1)
    presets_of(site, "x-thief", "x_thief", **{"stack-maximum": mine})
    presets_of(site, "x-gone", "x_nowhere")
    files = {
        "x_raises/__init__.py": "raise OSError('out of\\npaper')\n",
        "x_exits/__init__.py": "import sys\nsys.exit(3)\n",
        "x_value.py": "VALUE = 5\n",
        "x_module.py": "",
        "x_bytes/__init__.py": "",
        "x_bytes/x-bytes-preset.toml": "",
        "x_folder/__init__.py": "",
        "x_folder/x-folder-preset.toml/within": "",
        "x_empty/__init__.py": "",
        "x_empty/x-empty-preset.toml": "",
    }
    for kind in ("raises", "exits", "value:VALUE", "module", "bytes", "folder", "empty"):
        name = kind.partition(":")[0]
        own = {path: text for path, text in files.items() if path.startswith(f"x_{name}")}
        install(site, f"x-{name}", {"neaptide.presets": {f"x-{name}": f"x_{kind}"}}, own)
    (site / "x_bytes" / "x-bytes-preset.toml").write_bytes(b"# \xff\n")
    return site


def neaptide(site: Path, *arguments: str) -> Any:
    """Run the command line with the site's distributions installed."""
    return warm.run(["-m", "neaptide", *arguments], env=environment(site))


PROBLEMS = {
    "x-both": "x-one 1.0 and x-two 1.0 both ship a preset of this name; uninstall one",
    "stack-maximum": "both ship a preset of this name; uninstall one",
    "x-bytes-preset": "x-bytes 1.0: ",
    "x-folder-preset": "x-folder 1.0: ",
}
PACKAGES = {
    "x-gone 1.0": "importing 'x_nowhere' raised ModuleNotFoundError: No module named 'x_nowhere'",
    "x-raises 1.0": "importing 'x_raises' raised OSError: out of paper",
    "x-exits 1.0": "importing 'x_exits' raised SystemExit: 3",
    "x-value 1.0": "'x_value:VALUE' is not a package",
    "x-module 1.0": "'x_module' is not a package",
}


def test_the_list_has_all_that_work_and_says_what_does_not(site: Path) -> None:
    done = neaptide(site, "presets", "list", "--json")
    assert 0 == done.returncode, done.stderr
    listed = {row["name"]: row["summary"] for row in json.loads(done.stdout)}
    own = {name: summary for name, summary in listed.items() if name.startswith("x-")}
    assert {"x-one-own": "The first.", "x-two-own": "The second.", "x-empty-preset": ""} == own
    assert "tiny-cpu" in listed
    assert "stack-maximum" not in listed
    notes = sorted(done.stderr.splitlines())
    problems = PROBLEMS | PACKAGES
    assert len(problems) == len(notes)
    for what, problem in problems.items():
        start = f"note: preset {what!r} " if what in PROBLEMS else f"note: presets of {what} "
        (note,) = [note for note in notes if note.startswith(f"{start}cannot be used: ")]
        assert problem in note


@pytest.mark.parametrize(
    "arguments",
    [("config", "show", "--preset"), ("presets", "show"), ("presets", "copy")],
    ids=" ".join,
)
@pytest.mark.parametrize("name", ["x-both", "stack-maximum"])
def test_one_that_cannot_be_used_is_one_line(
    site: Path, arguments: tuple[str, ...], name: str
) -> None:
    done = neaptide(site, *arguments, name)
    assert (2, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith(f"error: preset {name!r} cannot be used: ")
    assert done.stderr.endswith(f"{PROBLEMS[name]}\n")
    assert 1 == done.stderr.count("\n")


def test_a_name_that_nobody_ships_comes_with_the_packages_that_are_broken(site: Path) -> None:
    done = neaptide(site, "presets", "show", "x-goner")
    assert (2, 1) == (done.returncode, done.stderr.count("\n"))
    assert done.stderr.startswith("error: unknown preset 'x-goner'")
    assert all(f"; {what}: {problem}" in done.stderr for what, problem in PACKAGES.items())


def test_the_name_of_an_entry_point_is_nobodys(site: Path, tmp_path: Path) -> None:
    own = {"x_named/__init__.py": "", "x_named/x-named.toml": PRESET.format(headline="N", steps=7)}
    named = {"neaptide.presets": {"neaptide": "x_named"}}
    install(tmp_path, "x-named", named, own)
    install(tmp_path, "x-broken", {"neaptide.presets": {"tiny-cpu": "x_broken"}}, {})
    listed = json.loads(neaptide(tmp_path, "presets", "list", "--json").stdout)
    assert {"tiny-cpu", "stack-maximum", "x-named"} <= {row["name"] for row in listed}


def test_a_run_is_configured_by_a_strangers_preset(site: Path) -> None:
    done = neaptide(site, "config", "show", "--preset", "x-two-own", "--json")
    assert (0, "") == (done.returncode, done.stderr)
    assert 2 == json.loads(done.stdout)["train"]["steps"]


def test_no_package_of_presets_is_imported_without_need(site: Path) -> None:
    (site / "x_one" / "__init__.py").write_text("raise OSError\n", encoding="utf-8")
    try:
        done = neaptide(site, "config", "check", os.devnull)
        assert "x_one" not in done.stderr
    finally:
        (site / "x_one" / "__init__.py").write_text("", encoding="utf-8")
