"""`neaptide plugins new`: what is written installs, passes its own tests and is found."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
import yaml
from support import some

from neaptide_verbs.plugins import new, verb

if TYPE_CHECKING:
    from collections.abc import Mapping

TEMPLATES = Path(new.__file__).with_name("templates")
NAME = "guests-first"
PACKAGE = "guests_first"


def texts(directory: Path) -> dict[str, str]:
    """Return every file of a distribution by its path in it."""
    return {
        path.relative_to(directory).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def python(*arguments: object, cwd: Path, env: Mapping[str, str]) -> str:
    """Run this Python to its end; return what it prints."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=dict(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stdout
    return done.stdout


@pytest.mark.parametrize("kind", some(new.KINDS))
def test_what_is_written_installs_passes_its_tests_and_is_found(
    neaptide: Any, folder: Path, environment: dict[str, str], kind: str
) -> None:
    assert 0 == neaptide("plugins", "new", NAME, "--kind", kind).code
    project, site = folder / NAME, folder / "site"
    readme = (project / "README.md").read_text(encoding="utf-8")
    pip = ("pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    python("-m", *pip, "--target", site, project, cwd=folder, env=environment)
    # What is imported from here on is the wheel.
    shutil.rmtree(project / "src")
    paths = [str(site), environment.get("PYTHONPATH", "")]
    env = {**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    tested = python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=project, env=env)
    assert re.search(r"^\d+ passed in", tested, re.MULTILINE), tested
    if kind == "verb":
        assert "Show the time" in python("-m", "neaptide", NAME, "--help", cwd=folder, env=env)
        return
    command = ("-m", "neaptide", "plugins", "show", NAME, "--json")
    shown = json.loads(python(*command, cwd=folder, env=env))
    assert new.KINDS[kind].summary == shown["summary"]
    assert "neaptide-guests-first 0.1.0" == shown["distribution"]
    assert (kind == "observer") == shown["observer"]
    assert [] == [s["name"] for s in shown["settings"] if f"| `{s['name']}` |" not in readme]


@pytest.mark.parametrize("kind", new.KINDS)
def test_nothing_is_left_to_be_filled_in(neaptide: Any, folder: Path, kind: str) -> None:
    neaptide("plugins", "new", NAME, "--kind", kind)
    for place, text in texts(folder / NAME).items():
        assert not re.search(r"@\w+@|TODO|FIXME|NotImplemented|\.\.\.$", place + text), place
        assert all(len(line) <= 100 for line in text.splitlines()), place
        if place.endswith(".py"):
            compile(text, place, "exec")


def test_the_kinds_have_a_folder_each() -> None:
    assert list(get_args(verb.Kind)) == list(new.KINDS)
    assert {*new.KINDS, "common"} == {path.name for path in TEMPLATES.iterdir()}
    assert {".txt"} == {path.suffix for path in TEMPLATES.rglob("*") if path.is_file()}


def test_it_says_what_it_wrote_and_what_comes_next(neaptide: Any, folder: Path) -> None:
    done = neaptide("plugins", "new", "mine", "--dir", folder / "else where")
    assert (0, "") == (done.code, done.err)
    assert done.out == (
        f"{folder}/else where: 9 files\n\nNext:\n\n    cd '{folder}/else where'\n"
        '    pip install -e ".[test]"\n    pytest\n    neaptide plugins show mine\n'
    )


def test_json_names_every_file(neaptide: Any, folder: Path) -> None:
    said = json.loads(neaptide("plugins", "new", NAME, "--json").out)
    assert (NAME, "observer", NAME) == (said["name"], said["kind"], said["path"])
    assert said["files"] == sorted(texts(folder / NAME))
    assert {f"src/{PACKAGE}/plugin.py", ".github/workflows/ci.yml", ".gitignore"} < {*said["files"]}


def test_ci_installs_and_tests(neaptide: Any, folder: Path) -> None:
    neaptide("plugins", "new", NAME)
    written = texts(folder / NAME)[".github/workflows/ci.yml"]
    job = yaml.safe_load(written)["jobs"]["test"]
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert ['pip install ".[test]"', "pytest"] == commands


def test_others_may_read_it_as_they_may_other_files(neaptide: Any, folder: Path) -> None:
    neaptide("plugins", "new", NAME)
    (folder / "other").mkdir()
    assert (folder / "other").stat().st_mode == (folder / NAME).stat().st_mode


PACKAGE_WOULD_BE = "error: the package of {0!r} would be {1!r}, which is {2}; choose another name"
REFUSALS = [
    (("Mine",), "(got 'Mine'); choose such a name"),
    (("mine-",), "(got 'mine-'); choose such a name"),
    (("../mine",), "(got '../mine'); choose such a name"),
    (("ema",), "error: a plugin 'ema' is installed already, by neaptide "),
    (("report", "--kind", "verb"), "error: a verb 'report' is installed already, by neaptide "),
    (("run", "--kind", "verb"), "error: a verb 'run' is built into neaptide; choose another name"),
    (("class",), PACKAGE_WOULD_BE.format("class", "class", "a keyword of Python")),
    (("json",), PACKAGE_WOULD_BE.format("json", "json", "a module of Python's standard library")),
    (("tests",), PACKAGE_WOULD_BE.format("tests", "tests", "a folder of its distribution")),
    (("torch",), PACKAGE_WOULD_BE.format("torch", "torch", "a package that is installed here")),
    (("neaptide",), "which is a package that is installed here"),
    (("mine", "--dir", "kept"), "error: kept exists already; name another directory with --dir"),
    (("mine", "--dir", "kept/file"), "error: kept/file exists already"),
    (("mine", "--dir", "kept/gone"), "error: kept/gone exists already"),
    (
        ("mine", "--dir", "no/where"),
        "error: cannot write no/where: No such file or directory; name",
    ),
    (("mine", "--dir", "kept/file/x"), "error: cannot write kept/file/x: Not a directory; name"),
    (("mine", "--dir", "a\0b"), "null"),
    (("a" * 300,), "File name too long; name another directory with --dir"),
    (("mine", "--kind", "daemon"), "daemon"),
]


@pytest.mark.parametrize(
    ("arguments", "expected"), REFUSALS, ids=[" ".join(given)[:30] for given, _ in REFUSALS]
)
def test_a_refusal_is_one_line_and_leaves_nothing(
    neaptide: Any, folder: Path, arguments: tuple[str, ...], expected: str
) -> None:
    (folder / "kept").mkdir()
    (folder / "kept" / "file").write_text("as it was")
    (folder / "kept" / "gone").symlink_to("nowhere")
    before = sorted(folder.rglob("*"))
    done = neaptide("plugins", "new", *arguments)
    assert (2, "") == (done.code, done.out)
    assert 1 == len(done.err.splitlines())
    assert expected in done.err
    assert before == sorted(folder.rglob("*"))
    assert "as it was" == (folder / "kept" / "file").read_text()


def test_a_disk_that_fails_half_way_leaves_nothing(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    resource = pytest.importorskip("resource")
    code = f"""
import resource, sys
resource.setrlimit({resource.RLIMIT_FSIZE}, (300, 300))
from neaptide.cli import main
sys.exit(main(["plugins", "new", "mine"]))
"""
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    expected = "error: cannot write mine: File too large; name another directory with --dir\n"
    assert (2, expected) == (done.returncode, done.stderr)
    assert [] == list(tmp_path.iterdir())
