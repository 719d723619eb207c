"""Verbs that distributions ship: found, listed, told apart; one that is broken harms no other."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import pytest
from distributions import install
from support import environment as environment_with

from neaptide.cli import main

if TYPE_CHECKING:
    from pathlib import Path

GUEST = '''
from cyclopts import App
from neaptide.cli.output import AsJson, print_json, print_text

def greet(name: str = "you", /, *, times: int = 1, json: AsJson = False) -> int:
    """Greet whoever is named."""
    print_json({"greeting": name}) if json else print_text("hello " * times + name)
    return 3

zoo = App(name="another-name", help="Count animals.")

@zoo.command
def feed() -> None:
    """Feed them."""
    print_text("fed")

def below() -> None:
    """Say where it is."""
    print_text("below")

value = 5
path = "os:getcwd"

class Verb:
    """No function."""

def unknown(name: "NoSuchType") -> None:
    """Take what there is not."""
'''
BROKEN = {
    "x-absent": ("x_nowhere:verb", "importing 'x_nowhere:verb' raised ModuleNotFoundError: "),
    "x-raises": ("x_raises:verb", "importing 'x_raises:verb' raised OSError: out of *paper*"),
    "x-exits": ("x_exits:verb", "importing 'x_exits:verb' raised SystemExit: 3"),
    "x-syntax": ("x_syntax:verb", "importing 'x_syntax:verb' raised SyntaxError: invalid syntax"),
    "x-missing": ("x_guest:verb", "importing 'x_guest:verb' raised AttributeError: "),
    "x-value": ("x_guest:value", "'x_guest:value' must be a function or an App (got int)"),
    "x-path": ("x_guest:path", "'x_guest:path' must be a function or an App (got str)"),
    "x-class": ("x_guest:Verb", "'x_guest:Verb' must be a function or an App (got type)"),
    "x-module": ("x_guest", "'x_guest' must be a function or an App (got module)"),
    "x-unknown": ("x_guest:unknown", "name 'NoSuchType' is not defined"),
    "x-lost.part": ("x_guest:below", "its parent verb 'x-lost' does not exist"),
    "x-lost.other": ("x_guest:below", "its parent verb 'x-lost' does not exist"),
    "config.x-lost.part": (
        "x_guest:below",
        "its parent verb 'config.x-lost' does not exist",
    ),
}
BAD = {
    "x_raises.py": "raise OSError('out of\\n*paper*')\n",
    "x_exits.py": "import sys\nsys.exit(3)\n",
    "x_syntax.py": "def (:\n",
}
GOOD = {
    "x-greet": "x_guest:greet",
    "x-zoo": "x_guest:zoo",
    "x-zoo.count": "x_guest:below",
    "config.x-below": "x_guest:below",
    "x-greet.again": "x_guest:below",
}


@pytest.fixture
def site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where distributions are found from now on, by this process and those it starts."""
    site = folder / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", environment_with(site)["PYTHONPATH"])
    return site


@pytest.fixture
def guest(site: Path) -> Path:
    """Install a stranger's verbs that work."""
    install(site, "x-guest", {"neaptide.verbs": GOOD}, {"x_guest.py": GUEST})
    return site


def flat(text: str) -> str:
    """Return a help text without its frame and where its lines break."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


@pytest.mark.usefixtures("guest")
def test_a_strangers_verb_is_a_verb(command: Any) -> None:
    done = command("x-greet", "me", "--times", "2")
    assert (3, "hello hello me\n", "") == (done.code, done.out, done.err)
    assert {"greeting": "you"} == json.loads(command("x-greet", "--json").out)
    assert "x-greet Greet whoever is named." in flat(command("--help").out)


@pytest.mark.usefixtures("guest")
@pytest.mark.parametrize(
    ("arguments", "out"),
    [
        (("x-zoo", "feed"), "fed\n"),
        (("x-zoo", "count"), "below\n"),
        (("config", "x-below"), "below\n"),
        (("x-greet", "again"), "below\n"),
    ],
    ids=" ".join,
)
def test_a_verb_below_another(neaptide: Any, arguments: tuple[str, ...], out: str) -> None:
    done = neaptide(*arguments)
    assert (0, out, "") == (done.code, done.out, done.err)
    assert "Say where it is." in neaptide(arguments[0], "--help").out


@pytest.mark.usefixtures("guest")
def test_a_shipped_verb_keeps_its_own_beside_a_strangers(neaptide: Any) -> None:
    assert 0 == neaptide("config", "check", "tiny.toml").code
    listed = flat(neaptide("config", "--help").out)
    assert ["check", "convert", "schema", "show", "x-below"] == [
        name for name in ("check", "convert", "schema", "show", "x-below") if f" {name} " in listed
    ]


@pytest.fixture
def broken(guest: Path) -> None:
    """Install verbs of every kind that cannot be used."""
    entries = {name: target for name, (target, _) in BROKEN.items()}
    install(guest, "x-broken", {"neaptide.verbs": entries}, BAD)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("more", [(), ("this", "--json", "--that=1")], ids=["", "arguments"])
def test_a_broken_verb_is_one_line_for_who_uses_it(
    neaptide: Any, name: str, more: tuple[str, ...]
) -> None:
    done = neaptide(*name.split("."), *more)
    (line,) = done.err.splitlines()
    # Of two that lack the same verb above them, the last is named.
    shown = "x-lost.part" if name == "x-lost.other" else name
    start = f"error: verb {shown!r} from x-broken 1.0 cannot be used: {BROKEN[name][1]}"
    assert (2, line) == (done.code, line if line.startswith(start) else start)


@pytest.mark.usefixtures("broken")
def test_broken_verbs_are_in_the_help_and_the_others_work(command: Any) -> None:
    done = command("--help")
    assert (0, "") == (done.code, done.err)
    listed = flat(done.out)
    for name, (_, problem) in BROKEN.items():
        if not name.startswith("config."):
            assert f" {name.partition('.')[0]} BROKEN: {problem.split(':')[0]}" in listed
    assert "raised OSError: out of *paper*" in listed
    assert "x-greet Greet whoever is named." in listed
    assert 0 == command("config", "check", "tiny.toml").code
    assert 0 == command("completion", "bash").code


def test_a_broken_verb_leaves_those_below_it(site: Path, neaptide: Any) -> None:
    entries = {"x-torn": "x_nowhere:verb", "x-torn.below": "x_guest:below"}
    install(site, "x-torn", {"neaptide.verbs": entries}, {"x_guest.py": GUEST})
    assert "below\n" == neaptide("x-torn", "below").out
    assert 2 == neaptide("x-torn", "above").code


@pytest.mark.parametrize(
    ("name", "owner", "other"),
    [
        ("x-twice", "x-first 1.0 and x-second 1.0", ("doctor", "--help")),
        ("run", "neaptide and x-second 1.0", ("config", "check", "tiny.toml")),
        ("ckpt", "neaptide [^ ]+ and x-second 1.0|x-second 1.0 and neaptide [^ ]+", ("run", "-h")),
        ("config.check", "neaptide [^ ]+ and x-second 1.0", ("config", "show", "tiny.toml")),
    ],
)
def test_two_of_one_name_are_refused_by_name(
    guest: Path, neaptide: Any, name: str, owner: str, other: tuple[str, ...]
) -> None:
    for distribution, target in (("x-first", "greet"), ("x-second", "below")):
        if distribution == "x-second" or name == "x-twice":
            install(guest, distribution, {"neaptide.verbs": {name: f"x_guest:{target}"}})
    done = neaptide(*name.split("."), "tiny.toml")
    (line,) = done.err.splitlines()
    end = f"cannot be used: ({owner}) both ship a verb of this name; uninstall one"
    assert (2, "") == (done.code, done.out)
    assert re.fullmatch(f"error: verb {name!r} from .* {end}", line), line
    assert 0 == neaptide(*other).code
    assert f" {name.partition('.')[0]} " in neaptide("--help").out


def test_of_three_that_ship_one_name_none_is_used(guest: Path, neaptide: Any) -> None:
    for distribution, target in (("x-a", "greet"), ("x-b", "below"), ("x-c", "below")):
        install(guest, distribution, {"neaptide.verbs": {"x-thrice": f"x_guest:{target}"}})
    assert "both ship a verb of this name" in neaptide("x-thrice").err


@pytest.mark.parametrize("name", ["--help", "-h", "X Y", "a..b", "."])
def test_what_cannot_be_a_verbs_name_is_said_and_left_out(
    guest: Path, command: Any, name: str
) -> None:
    install(guest, "x-odd", {"neaptide.verbs": {name: "x_guest:below"}})
    done = command("--help")
    assert (0, f"WARNING: x-odd 1.0: {name!r} cannot name a verb\n") == (
        done.code,
        done.err,
    )
    assert "Usage: neaptide COMMAND" in done.out


LOADED = """
import json, sys
from neaptide.cli import main
main(sys.argv[1:])
ours = [name for name in sys.modules if name.partition(".")[0] in ("neaptide_verbs", "x_guest")]
print("\\n" + json.dumps([sorted(ours), "torch" in sys.modules]))
"""
TARGETS = {
    entry.name: entry.module
    for entry in entry_points(group="neaptide.verbs")
    if entry.module.startswith("neaptide_verbs.")
}


def loaded(*arguments: str) -> tuple[set[str], bool]:
    """Run a command; return the modules of verbs it imported, and whether it imported torch."""
    code = [sys.executable, "-c", LOADED, *arguments]
    done = subprocess.run(code, capture_output=True, text=True, check=True)
    modules, torch = json.loads(done.stdout.splitlines()[-1])
    return set(modules), torch


def homes(*modules: str) -> set[str]:
    """Return modules and the packages they are in."""
    parts = [module.split(".") for module in modules]
    return {".".join(path[:end]) for path in parts for end in range(1, len(path) + 1)}


@pytest.mark.usefixtures("guest")
def test_the_help_imports_where_verbs_are_and_no_more() -> None:
    modules, torch = loaded("--help")
    # `kernels` is several commands, which share files; these import no torch either.
    shared = {f"neaptide_verbs.kernels.{name}" for name in ("kept_list", "loading", "roof")}
    assert (homes(*TARGETS.values(), "x_guest"), False) == (modules - shared, torch)


@pytest.mark.usefixtures("guest")
@pytest.mark.parametrize(
    ("arguments", "verbs"),
    [
        (("run", "missing.toml"), set()),
        (("run", "--help"), set()),
        (("doctor", "--help"), {"doctor"}),
        (("presets", "list"), {"presets"}),
        (("config", "--help"), {"config", "config.convert", "config.schema", "x"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_verb_imports_no_other(arguments: tuple[str, ...], verbs: set[str]) -> None:
    expected = [TARGETS.get(verb, "x_guest") for verb in verbs]
    assert (homes(*expected), False) == loaded(*arguments)


def test_examining_the_machine_imports_no_other_verb() -> None:
    modules, _ = loaded("doctor", "--no-disk", "--json")
    assert modules <= {"neaptide_verbs"} | {
        module for module in modules if module.startswith("neaptide_verbs.doctor")
    }


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("config", "--help"),
        ("completion", "zsh"),
        ("x-zoo", "count"),
        ("x-raises",),
        ("x-lost", "part"),
    ],
    ids=" ".join,
)
def test_calling_it_twice_gives_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    first = main(arguments), capsys.readouterr()
    assert first == (main(arguments), capsys.readouterr())
