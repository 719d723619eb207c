"""An exception whose text cannot be made, from whatever raises it, ends in its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from distributions import install
from support import environment as environment_with

if TYPE_CHECKING:
    from pathlib import Path

ERRORS = """
class UnprintableError(Exception):
    def __str__(self): raise KeyError("first")
    __repr__ = __str__

class OwnError(BaseException):
    def __str__(self): raise KeyError("second")
    __repr__ = __str__
"""
GUEST = """
from neaptide import Plugin, PluginSpec, hookimpl
from x_errors import OwnError, UnprintableError

RAISING = PluginSpec(name="x-raising", load="x_guest:Raising")
REPORTING = PluginSpec(name="x-reporting", load="x_guest:Reporting")
IMPORTING = PluginSpec(name="x-importing", load="x_imported:Plugin")

class Raising(Plugin):
    @hookimpl
    def after_step(self):
        raise {kind}

class Reporting(Plugin):
    def report(self):
        raise {kind}
"""
TASK = """
from tiny_task import *
from x_errors import OwnError, UnprintableError

def unprintable_model():
    raise {kind}

def unprintable_data():
    class Data:
        def __iter__(self):
            raise {kind}
            yield
    return Data()
"""
KINDS = ["UnprintableError", "OwnError"]


@pytest.fixture
def site(folder: Path, request: pytest.FixtureRequest) -> Path:
    kind = request.param
    plugins = {f"x-{each.lower()}": f"x_guest:{each}" for each in ("RAISING", "REPORTING")}
    plugins |= {"x-importing": "x_guest:IMPORTING", "x-broken": "x_imported:SPEC"}
    entries = {"neaptide.plugins": plugins, "neaptide.verbs": {"x-verb": "x_imported:verb"}}
    files = {
        "x_errors.py": ERRORS,
        "x_guest.py": GUEST.format(kind=kind),
        "x_imported.py": f"from x_errors import {kind}\nraise {kind}\n",
    }
    install(folder / "site", "x-guest", entries, files)
    (folder / "x_task.py").write_text(TASK.format(kind=kind), encoding="utf-8")
    return folder / "site"


CANNOT = "from x-guest 1.0 cannot be used: importing"
CASES = {
    "model.name=x_task:unprintable_model": (1, "error: {}"),
    "data.name=x_task:unprintable_data": (1, "error: "),
    "plugins.x-raising={}": (1, "error: {}"),
    "plugins.x-importing={}": (
        2,
        "error: plugin 'x-importing': importing 'x_imported:Plugin' raised {}",
    ),
    "plugins.x-broken={}": (2, f"error: plugin 'x-broken' {CANNOT} 'x_imported:SPEC' raised {{}}"),
    "plugins.x-reporting={}": (0, "WARNING: plugin 'x-reporting' cannot report: {}"),
    "x-verb": (2, f"error: verb 'x-verb' {CANNOT} 'x_imported:verb' raised {{}}"),
}


@pytest.mark.parametrize("site", KINDS, indirect=True)
def test_what_cannot_be_printed_is_named(site: Path, command: Any) -> None:
    (kind,) = [kind for kind in KINDS if f"raise {kind}" in (site / "x_imported.py").read_text()]
    told = f"{kind}: its text cannot be read"
    for number, (setting, (code, expected)) in enumerate(CASES.items()):
        sets = (setting, f"run.dir=runs/{number}")
        run = ("run", "tiny.toml", *(f"--set={each}" for each in sets))
        arguments = run if "=" in setting else (setting,)
        done = command(*arguments, PYTHONPATH=environment_with(site)["PYTHONPATH"])
        (line,) = [one for one in done.err.splitlines() if one.startswith(("error: ", "WARNING: "))]
        assert code == done.code, (setting, done.err)
        assert "During handling" not in done.err, setting
        assert line.startswith(expected.format(told)), setting
        assert kind in line
