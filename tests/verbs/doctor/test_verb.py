"""`neaptide doctor` as people start it: on a sound installation, and on broken ones."""

from __future__ import annotations

import json
import os
import platform
import pty
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from command_line import Done

from neaptide.hooks.registry import installed_plugins

STRANGERS = """
import time
from neaptide import ConfigError, Finding, Plugin, PluginSpec, hookimpl, field
import attrs

class Base(Plugin):
    pass

class Good(Base):
    @hookimpl
    def diagnose(self):
        yield Finding("warning", "tape", "it is wound up wrongly", "unwind")

class Raising(Base):
    @hookimpl
    def diagnose(self):
        raise KeyError("no\\nsuch thing")

class Wrong(Base):
    @hookimpl
    def diagnose(self):
        return ["all is well"]

class Silent(Base):
    @hookimpl
    def diagnose(self):
        return None

class Misspelled(Base):
    @hookimpl
    def diagnoze(self):
        return []

class Extra(Base):
    def __init__(self, config):
        raise ConfigError('tape is not installed: pip install "guests[tape]" @ plugins.extra')

class Leaving(Base):
    def __init__(self, config):
        raise SystemExit(3)
"""
MANIFEST = 'SPEC = PluginSpec(name="{name}", load="{load}", summary="A guest.")\n'
CLASSES = ("good", "raising", "wrong", "silent", "misspelled", "leaving", "extra")
TITLES = [
    "Software",
    "GPUs",
    "Memory",
    "Processor",
    "Processes",
    "Disk",
    "Environment",
    "Extras",
    "Plugins",
]
ENTRIES = {name: f"guest_{name}:SPEC" for name in CLASSES} | {
    "gone": "nowhere:SPEC",
    "number": "guests:TEN",
    "classless": "guest_classless:SPEC",
    "renamed": "guest_good:SPEC",
}


def install(site: Path, name: str, entries: dict[str, str], needs: tuple[str, ...] = ()) -> None:
    """Leave the metadata of a distribution in `site`."""
    info = site / f"{name}-2.1.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 2.1"]
    lines += [f"Requires-Dist: {need}" for need in needs]
    (info / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = "".join(f"{plugin} = {target}\n" for plugin, target in entries.items())
    (info / "entry_points.txt").write_text(f"[neaptide.plugins]\n{rows}", encoding="utf-8")


@pytest.fixture
def command(start: Any) -> Any:
    """Return the command line in processes from nothing: what it imports is what it examines."""

    def run(*arguments: object, **env: str) -> Done:
        process = start(*arguments, **env)
        out, err = process.communicate(timeout=120)
        return Done(process.returncode, out, err)

    return run


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a directory for distributions."""
    directory = tmp_path / "site"
    directory.mkdir()
    return directory


@pytest.fixture
def strangers(site: Path) -> Path:
    """Return a directory that holds one sound plugin and one of every kind of broken one."""
    (site / "guests.py").write_text(f"{STRANGERS}\nTEN = 10\n", encoding="utf-8")
    for name in (*CLASSES, "classless"):
        load = f"guests:{name.capitalize()}"
        text = f"from neaptide import PluginSpec\n{MANIFEST.format(name=name, load=load)}"
        (site / f"guest_{name}.py").write_text(text, encoding="utf-8")
    install(site, "guests", ENTRIES)
    install(site, "needy", {"needy": "needy_module:SPEC"}, ("absent-thing>=3", "numpy>=1"))
    (site / "needy_module.py").write_text("import absent_thing\n", encoding="utf-8")
    return site


def path_with(*directories: Path) -> str:
    """Return a PYTHONPATH on which `directories` come first."""
    given = [*map(str, directories), os.environ.get("PYTHONPATH")]
    return os.pathsep.join(filter(None, given))


def examined(command: Any, *arguments: str, **env: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and what `doctor --json` printed."""
    done = command("doctor", "--json", *arguments, **env)
    return done.code, json.loads(done.out)


def by_name(printed: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {found["what"]: found for found in printed["findings"]}


def test_a_sound_installation_is_ready(command: Any) -> None:
    done = command("doctor", "--no-disk")
    assert (0, "") == (done.code, done.err)
    lines = done.out.splitlines()
    assert lines[-1].startswith("ready to train on ")
    titles = [line for line in lines[:-1] if line and not line.startswith(" ")]
    assert TITLES == titles
    words = [line.split() for line in lines[1:4]]
    assert ["ok", "Python", platform.python_version()] == words[0][:3]
    assert ["ok", "torch", torch.__version__] == words[2][:3]
    assert "\x1b" not in done.out


def test_the_columns_are_aligned_and_advice_stands_below(command: Any, strangers: Path) -> None:
    env = {"PYTHONPATH": path_with(strangers)}
    lines = command("doctor", "--no-disk", **env).out.splitlines()
    printed = examined(command, "--no-disk", **env)[1]
    plugins = [row for row in printed["findings"] if row["section"] == "Plugins"]
    place = lines.index("Plugins") + 1
    columns = set()
    for row in plugins:
        assert f"  {row['level']:<7}  {row['what']}  " == lines[place][: 13 + len(row["what"])]
        columns.add(lines[place].index(row["detail"]))
        place += 1
        if row["advice"] is not None:
            columns.add(lines[place].index(f"-> {row['advice']}"))
            place += 1
    assert 1 == len(columns)


def test_everything_is_in_the_json(command: Any) -> None:
    code, printed = examined(command)
    assert (0, True) == (code, printed["ok"])
    facts = printed["facts"]
    assert psutil.virtual_memory().total == facts["memory"]["total"]
    assert torch.__version__ == facts["torch"]["version"]
    assert facts["disk"]["speed"]["write"] > 0
    assert set(installed_plugins()) == {row["name"] for row in facts["plugins"]}
    assert {"section", "level", "what", "detail", "advice"} == set(printed["findings"][0])


def test_nothing_is_left_on_the_disk(folder: Path, command: Any) -> None:
    before = sorted(folder.iterdir())
    assert 0 == examined(command, "--dir", "runs/deep/inside")[0]
    assert before == sorted(folder.iterdir())


def test_without_the_disk_trial_there_is_no_speed(command: Any) -> None:
    code, printed = examined(command, "--no-disk")
    assert (0, None) == (code, printed["facts"]["disk"]["speed"])


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="/proc is what nobody can write in")
def test_a_directory_nobody_can_write_in_is_an_error(command: Any) -> None:
    code, printed = examined(command, "--dir", "/proc")
    assert (1, False) == (code, printed["ok"])
    found = by_name(printed)["writing"]
    assert ("error", "set run.dir to a directory on another disk") == (
        found["level"],
        found["advice"],
    )
    assert found["detail"].startswith("cannot write in /proc: ")


def test_a_disabled_plugin_is_not_imported(command: Any, strangers: Path) -> None:
    env = {"PYTHONPATH": path_with(strangers), "NEAPTIDE_DISABLED_PLUGINS": "raising,profilr"}
    found = by_name(examined(command, "--no-disk", **env)[1])
    expected = ("note", "guests 2.1, blocked by NEAPTIDE_DISABLED_PLUGINS", None)
    assert expected == (
        found["raising"]["level"],
        found["raising"]["detail"],
        found["raising"]["advice"],
    )
    variable = found["NEAPTIDE_DISABLED_PLUGINS"]
    assert ("warning", "'profilr' is not installed (did you mean 'profiler'?)") == (
        variable["level"],
        variable["detail"],
    )


def test_every_plugin_says_its_part_or_why_not(command: Any, strangers: Path) -> None:
    code, printed = examined(command, "--no-disk", PYTHONPATH=path_with(strangers))
    assert 1 == code
    found = [row for row in printed["findings"] if row["section"] == "Plugins"]
    own = [
        (row["what"], row["level"], row["detail"].removeprefix("guests 2.1"), row["advice"])
        for row in found
        if row["what"].partition(":")[0] in ENTRIES
    ]
    again = "pip install --force-reinstall guests"
    newer = "pip install --upgrade guests"
    assert [
        (
            "classless",
            "error",
            (
                " is broken: importing 'guests:Classless' raised "
                "AttributeError: module 'guests' has no attribute 'Classless'"
            ),
            again,
        ),
        (
            "extra",
            "note",
            ' cannot run yet: tape is not installed: pip install "guests[tape]" @ plugins.extra',
            'pip install "guests[tape]"',
        ),
        (
            "gone",
            "error",
            (
                " is broken: importing 'nowhere:SPEC' raised ModuleNotFoundError: "
                "No module named 'nowhere'"
            ),
            again,
        ),
        ("good", "ok", "", None),
        ("good: tape", "warning", "it is wound up wrongly", "unwind"),
        ("leaving", "error", " is broken: SystemExit: 3", newer),
        (
            "misspelled",
            "error",
            (" is broken: there is no hook 'diagnoze' (did you mean 'diagnose'?)"),
            newer,
        ),
        ("number", "error", " is broken: 'guests:TEN' must be a PluginSpec (got int)", newer),
        ("raising", "ok", "", None),
        (
            "raising",
            "error",
            ": its diagnose failed: KeyError: 'no\\nsuch thing'",
            "export NEAPTIDE_DISABLED_PLUGINS=raising",
        ),
        (
            "renamed",
            "error",
            " is broken: its PluginSpec is named 'good' but the entry point 'renamed'",
            newer,
        ),
        ("silent", "ok", "", None),
        ("wrong", "ok", "", None),
        (
            "wrong",
            "error",
            (": its diagnose failed: plugin 'wrong' must return Finding from 'diagnose' (got str)"),
            "export NEAPTIDE_DISABLED_PLUGINS=wrong",
        ),
    ] == own


def test_a_missing_extra_of_a_plugin_is_a_note(command: Any, site: Path) -> None:
    # An importer that finds no tensorboard stands for an environment without the extra.
    hiding = "import importlib.util as u\nf = u.find_spec\n"
    hiding += "u.find_spec = lambda n, *a: None if n == 'tensorboard' else f(n, *a)\n"
    (site / "sitecustomize.py").write_text(hiding, encoding="utf-8")
    code, printed = examined(command, "--no-disk", PYTHONPATH=path_with(site))
    found = by_name(printed)["tensorboard"]
    assert (0, "note", 'pip install "neaptide[tensorboard]"') == (
        code,
        found["level"],
        found["advice"],
    )


def test_of_two_that_ship_one_plugin_the_one_to_remove_is_not_neaptide(
    command: Any, site: Path
) -> None:
    text = f"from neaptide import PluginSpec\n{MANIFEST.format(name='ema', load='guests:Good')}"
    (site / "guest_ema.py").write_text(text, encoding="utf-8")
    install(site, "guests", {"ema": "guest_ema:SPEC"})
    code, printed = examined(command, "--no-disk", PYTHONPATH=path_with(site))
    found = by_name(printed)["ema"]
    assert (1, "error", "pip uninstall guests") == (code, found["level"], found["advice"])
    assert "both ship a plugin of this name" in found["detail"]


def test_a_missing_dependency_is_named_with_its_command(command: Any, strangers: Path) -> None:
    printed = examined(command, "--no-disk", PYTHONPATH=path_with(strangers))[1]
    found = by_name(printed)["needy"]
    assert ("error", "pip install 'absent-thing>=3'") == (found["level"], found["advice"])
    assert found["detail"].endswith("No module named 'absent_thing'; it needs absent-thing>=3")


@pytest.mark.parametrize(
    "source",
    [
        "raise OSError('libcudart.so.13: cannot\\nopen')",
        "raise SystemExit(1)",
        "version = 3",
        "1 +",
    ],
)
def test_a_torch_that_cannot_be_imported_is_one_error(
    command: Any, site: Path, source: str
) -> None:
    (site / "torch.py").write_text(f"{source}\n", encoding="utf-8")
    done = command("doctor", "--json", PYTHONPATH=path_with(site))
    printed = json.loads(done.out)
    assert (1, "") == (done.code, done.err)
    errors = [found for found in printed["findings"] if found["level"] == "error"]
    assert ["torch"] == [found["what"] for found in errors]
    assert "cannot be imported: " in errors[0]["detail"]
    assert errors[0]["advice"].startswith("pip install --force-reinstall 'torch>=")
    assert None is printed["facts"]["torch"]
    assert "1 error: solve the errors first" == printed["verdict"]
    assert {"RAM", "CPUs", "speed", "profiler"} <= by_name(printed).keys()


HALF_A_TORCH = """
class version:
    cuda = None

__version__ = "2.13.0"

def get_num_threads():
    return 1
"""


def test_a_core_that_cannot_be_imported_is_one_error(command: Any, site: Path) -> None:
    (site / "torch.py").write_text(HALF_A_TORCH, encoding="utf-8")
    done = command("doctor", "--no-disk", "--json", PYTHONPATH=path_with(site))
    printed = json.loads(done.out)
    assert (1, "") == (done.code, done.err)
    (error,) = [found for found in printed["findings"] if found["level"] == "error"]
    assert ("Neaptide", "pip install --force-reinstall neaptide") == (
        error["what"],
        error["advice"],
    )
    assert "its training modules cannot be imported: " in error["detail"]
    assert "manifest only" in by_name(printed)["profiler"]["detail"]


def test_a_missing_extra_has_its_command(command: Any, site: Path) -> None:
    # A distribution of the same name, earlier on the path, stands for one with other extras.
    info = site / "neaptide-0.2.dist-info"
    info.mkdir()
    needs = ["torch>=99", "numpy", 'no-such-thing>=1; extra == "more"', 'pytest; extra == "test"']
    lines = ["Metadata-Version: 2.1", "Name: neaptide", "Version: 0.2"]
    lines += [f"Requires-Dist: {need}" for need in needs]
    (info / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
    verbs = metadata.distribution("neaptide").read_text("entry_points.txt")
    assert verbs is not None
    (info / "entry_points.txt").write_text(verbs, encoding="utf-8")
    code, printed = examined(command, "--no-disk", PYTHONPATH=path_with(site))
    found = by_name(printed)
    assert ("note", "not installed: no-such-thing", 'pip install "neaptide[more]"') == (
        found["more"]["level"],
        found["more"]["detail"],
        found["more"]["advice"],
    )
    assert (1, "error", "pip install --upgrade 'torch>=99'") == (
        code,
        found["torch"]["level"],
        found["torch"]["advice"],
    )


def test_variables_are_judged(command: Any) -> None:
    env = {
        "CUDA_LAUNCH_BLOCKING": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "NEAPTIDE__TRAIN__STEPS": "7",
        "NEAPTIDE_DISABLE_PLUGINS": "ema",
    }
    code, printed = examined(command, "--no-disk", **env)
    found = by_name(printed)
    levels = {name: found[name]["level"] for name in env}
    assert (0, ["warning", "note", "ok", "warning"]) == (code, list(levels.values()))
    assert (
        "no such variable (did you mean 'NEAPTIDE_DISABLED_PLUGINS'?)"
        == (found["NEAPTIDE_DISABLE_PLUGINS"]["detail"])
    )
    assert printed["verdict"].endswith("with 2 warnings")


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_on_a_terminal_only_where_they_are_wanted(
    folder: Path, environment: dict[str, str], variables: dict[str, str], *, coloured: bool
) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "neaptide", "doctor", "--no-disk"],
        cwd=folder,
        env={**environment, **variables},
        stdout=theirs,
    ) as process:
        os.close(theirs)
        printed = b""
        try:
            while chunk := os.read(ours, 4096):
                printed += chunk
        except OSError:  # the end of a terminal whose other side is closed
            pass
        finally:
            os.close(ours)
    assert 0 == process.returncode
    assert coloured == (b"\x1b[32m" in printed)
    assert b"ready to train on" in printed
