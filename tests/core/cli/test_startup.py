"""Verbs that only read start fast and without torch; usage errors are one line."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neaptide.cli.output import print_json

WITHOUT_TORCH = """
import sys
from neaptide.cli import main
code = main(sys.argv[1:])
sys.exit(99 if "torch" in sys.modules else code)
"""
READING = (
    ("--help",),
    ("--version",),
    ("run", "--help"),
    ("doctor", "--help"),
    ("completion", "bash"),
    ("config", "check", "--preset", "tiny-cpu"),
    ("config", "show", "tiny.toml"),
    ("plugins", "list"),
    ("plugins", "show", "profiler"),
    ("presets", "list"),
    ("presets", "show", "tiny-cpu"),
    ("presets", "copy", "tiny-cpu", "copied.toml"),
)
SEE = "; see neaptide --help\n"


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_reading_never_imports_torch(folder: Path, arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("ckpt", "list", "."), 2),
        (("ckpt", "verify", "."), 2),
        (("run", "missing.toml"), 2),
        (("run", "tiny.toml", "--set", "train.stpes=1"), 2),
        (("run", "tiny.toml", "--resume", "nowhere"), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_what_can_be_refused_early_never_imports_torch(
    folder: Path, arguments: tuple[str, ...], code: int
) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert code == done.returncode, done.stderr


def test_the_version_is_that_of_the_distribution(command: Any) -> None:
    assert f"{importlib.metadata.version('neaptide')}\n" == command("--version").out


def test_the_entry_point_is_the_command_line() -> None:
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="neaptide")
    assert "neaptide.cli:main" == entry.value
    assert callable(entry.load())


@pytest.mark.parametrize("verb", ["run", "config", "plugins", "presets", "ckpt", "doctor"])
def test_help_names_every_verb(neaptide: Any, verb: str) -> None:
    assert f" {verb} " in neaptide("--help").out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ("rum",),
            (
                'Unknown command "rum". Did you mean "run"? '
                "Available commands: run, ckpt, compare, completion, config, doctor, export, "
                "kernels"
            ),
        ),
        (("run", "tiny.toml", "--quit"), "Unknown option: --quit. Did you mean --quiet?"),
        (
            ("plugins", "shw"),
            (
                'Unknown command "shw". Did you mean "show"? '
                "Available commands: list, show, new, check"
            ),
        ),
        (("plugins", "show"), 'Command "plugins show" parameter NAME requires an argument'),
        (("ckpt", "list", ".", "--jsn"), "Unknown option: --jsn. Did you mean --json?"),
    ],
)
def test_a_wrong_command_line_is_one_line_with_a_suggestion(
    neaptide: Any, arguments: tuple[str, ...], error: str
) -> None:
    done = neaptide(*arguments)
    assert (2, "", f"error: {error}{SEE}") == (done.code, done.out, done.err)


def test_an_empty_argument_is_one_line(neaptide: Any) -> None:
    done = neaptide("config", "check", "")
    expected = "error: an argument is empty (an unset shell variable?)\n"
    assert (2, "", expected) == (done.code, done.out, done.err)


def test_a_wrong_command_line_as_json(neaptide: Any) -> None:
    done = neaptide("presets", "lst", "--json")
    text = 'Unknown command "lst". Did you mean "list"? Available commands: list, show, copy'
    expected = {"error": f"{text}{SEE.rstrip()}", "exit_code": 2}
    assert expected == json.loads(done.out)


def test_allowing_changes_without_resuming_is_a_mistake(neaptide: Any) -> None:
    done = neaptide("run", "tiny.toml", "--allow-changes")
    way_out = "give --resume auto or --resume CHECKPOINT too"
    expected = f"error: --allow-changes is for resuming; {way_out}\n"
    assert (2, expected) == (done.code, done.err)


@pytest.mark.parametrize(
    ("resume", "suggestion"),
    [("nowhere", ""), ("long" * 99, ""), ("aut", " (did you mean 'auto'?)")],
)
def test_resuming_from_nowhere_is_one_line(neaptide: Any, resume: str, suggestion: str) -> None:
    done = neaptide("run", "tiny.toml", "--resume", resume)
    text = f"there is no checkpoint {resume!r} to resume from{suggestion}"
    expected = f"error: {text}; see neaptide ckpt list runs/tiny\n"
    assert (2, expected) == (done.code, done.err)


def test_output_that_cannot_be_written_is_one_line(folder: Path) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "neaptide", "plugins", "list"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (1, "error: cannot write the output: No space left on device\n") == (
        done.returncode,
        done.stderr,
    )


def test_a_reader_that_has_seen_enough_is_no_error(folder: Path, start: Any) -> None:
    process = start("config", "show", "tiny.toml")
    process.stdout.close()
    assert "" == process.stderr.read()
    assert 1 == process.wait(timeout=60)


def test_numbers_that_are_not_finite_become_strings_in_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_json({"val_loss": float("nan"), "paths": [Path("a")]})
    assert {"val_loss": "nan", "paths": ["a"]} == json.loads(capsys.readouterr().out)


def test_without_metadata_a_verb_says_what_is_missing(tmp_path: Path) -> None:
    code = """
import sys
from neaptide import plugin
plugin.entry_points = type(plugin.entry_points())
from neaptide.cli import main
sys.exit(main(["doctor"]))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert 2 == done.returncode
    assert done.stderr.endswith("lists the verbs, is missing; pip install neaptide\n")
    assert 1 == done.stderr.count("\n")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "PASSIVE None"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE None"),
        ({"GOMP_SPINCOUNT": "7"}, "None 7"),
    ],
)
def test_threads_sleep_while_they_wait_unless_the_user_has_a_policy(
    folder: Path, given: dict[str, str], expected: str
) -> None:
    (folder / "policy.py").write_text(
        "import os, sys\n"
        "assert 'torch' in sys.modules\n"
        "print(os.environ.get('OMP_WAIT_POLICY'), os.environ.get('GOMP_SPINCOUNT'))\n"
        "raise SystemExit(0)\n",
        encoding="utf-8",
    )
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-m", "neaptide", "run", "--preset", "tiny-cpu"]
    done = subprocess.run(
        [*command, "--set", "model.name=policy:model"],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
        env={**environment, **given},
    )
    assert done.stdout.strip() == expected, done.stderr


def test_a_deleted_current_directory_is_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(
        [
            "sh",
            "-c",
            f"cd {gone} && rmdir {gone} && {sys.executable} -m neaptide run --preset tiny-cpu",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    why = "the current directory cannot be read: No such file or directory"
    expected = f"error: {why}; change to another directory\n"
    assert (2, expected) == (done.returncode, done.stderr)


def test_a_terminal_that_is_gone_does_not_change_the_exit_code() -> None:
    command = [sys.executable, "-m", "neaptide", "report", "nowhere"]
    with Path("/dev/full").open("w", encoding="utf-8") as gone:
        assert 2 == subprocess.run(command, stderr=gone, check=False).returncode
