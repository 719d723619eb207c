"""The versions of other libraries that a page states are those of the extras, the pins and tox."""

from __future__ import annotations

import configparser
import re
import tomllib

from packaging.requirements import Requirement
from packaging.version import Version
from pages import ROOT, text_of

PAGE = ROOT / "docs" / "integrations" / "transformers.md"
ROWS = re.findall(r"^\| (\w+) \| ([\d.]+).* \| ([\d.]+) \|$", text_of(PAGE), re.MULTILINE)


def floors(extra: str) -> dict[str, Version]:
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
    asked = map(Requirement, project["optional-dependencies"][extra])
    return {one.name: Version(str(one.specifier).removeprefix(">=")) for one in asked}


def test_the_oldest_are_those_that_the_extra_allows() -> None:
    assert {"transformers", "accelerate", "datasets", "trl"} == {name for name, _, _ in ROWS}
    allowed = {**floors("test"), **floors("hf")}
    assert {name: Version(oldest) for name, oldest, _ in ROWS} == {
        name: allowed[name] for name, _, _ in ROWS
    }


def test_the_newest_are_those_of_the_constraints() -> None:
    pins = dict(re.findall(r"^(\w+)==(\S+)$", text_of(ROOT / "constraints.txt"), re.MULTILINE))
    assert {name: newest for name, _, newest in ROWS} == {name: pins[name] for name, _, _ in ROWS}


def test_tox_installs_the_oldest_that_all_tests_can_use() -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    pins = dict(re.findall(r"(\w+)==([\d.]+)", tox["testenv:oldest"]["commands_pre"]))
    assert {name: Version(pin) for name, pin in pins.items()} == {
        name: floors("test")[name] for name, _, _ in ROWS
    }
