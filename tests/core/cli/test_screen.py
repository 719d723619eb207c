"""What goes wrong takes less than a screen, in lines of bounded width, in time that is linear."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from cyclopts import Token

from neaptide.config import load
from neaptide.errors import ConfigError
from neaptide.hooks.registry import installed_plugins
from neaptide.text import screen

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TASK = """
import sys, threading, warnings
from tiny_task import model

def recursing():
    sys.setrecursionlimit(60000)
    def one(): return other()
    def other(): return one()
    one()

def lines():
    raise ValueError("\\n".join(map(str, range(50_000))))

def wide():
    raise ValueError("x" * 1_000_000)

def noted():
    error = ValueError("x")
    for _ in range(5000):
        error.add_note("n" * 5000)
    raise error

def group():
    raise ExceptionGroup("many", [ValueError(str(n)) for n in range(20_000)])

def chain():
    last = None
    for n in range(300):
        try:
            raise ValueError(n) from last
        except ValueError as error:
            last = error
    raise last

def warned():
    warnings.warn("w" * 1_000_000)
    raise KeyError

def threaded():
    thread = threading.Thread(target=lines)
    thread.start()
    thread.join()
    sys.exit("left")

def leaving():
    module, loss_fn = model()
    module.register_forward_hook(lambda *_: sys.exit("line\\n" * 50_000))
    return module, loss_fn
"""


def check_screen(text: str, most: int = 59) -> None:
    lines = text.splitlines()
    assert 1 <= len(lines) <= most
    assert max(map(len, lines)) <= 2000


@pytest.mark.parametrize(
    "factory", ["recursing", "lines", "wide", "noted", "group", "chain", "warned", "leaving"]
)
def test_a_traceback_takes_less_than_a_screen(command: Any, folder: Path, factory: str) -> None:
    (folder / "large_task.py").write_text(TASK, encoding="utf-8")
    done = command("run", "tiny.toml", "--quiet", "--set", f"model.name=large_task:{factory}")
    assert 1 == done.code
    check_screen(done.err)


def test_a_traceback_of_a_thread_takes_less_than_a_screen(command: Any, folder: Path) -> None:
    (folder / "large_task.py").write_text(TASK, encoding="utf-8")
    done = command("run", "tiny.toml", "--quiet", "--set", "model.name=large_task:threaded")
    check_screen(done.err)
    assert "large_task.py" in done.err


def test_the_innermost_calls_and_the_error_are_shown(command: Any, folder: Path) -> None:
    (folder / "large_task.py").write_text(TASK, encoding="utf-8")
    done = command("run", "tiny.toml", "--quiet", "--set", "model.name=large_task:lines")
    assert "in lines\n" in done.err
    assert "\nerror: ValueError: 0 1 2 " in done.err
    assert "\nnote: raised by 'large_task:lines' @ model.name\n" in done.err


@pytest.mark.parametrize(
    ("last", "expected"),
    [(0, ["0", "1", "and 3 more lines"]), (1, ["0", "1", "and 2 more lines", "4"])],
)
def test_a_screen_says_how_much_it_lacks(last: int, expected: list[str]) -> None:
    assert expected == screen("0\n1\n2\n3\n4\n", 2, last).split("\n")
    assert "0\n1" == screen("0\n1\n", 2, last)


WIDE = "d" * 100_000  # Linux takes 128 KiB for one argument


@pytest.mark.parametrize(
    "arguments",
    [
        ("--set", f"run.dir={WIDE}"),
        ("--set", f"run.dir={'d/' * 10_000}"),
        ("--set", f"{WIDE}=1"),
        ("--set", f"{'d.' * 50_000}d=1"),
        ("--set", f"model.name=tiny_task:{WIDE}"),
        ("--set", f"optimizer.name={WIDE}"),
        ("--set", f"plugins.{WIDE}={{}}"),
        ("--resume", WIDE),
        ("--preset", WIDE),
        (WIDE,),
        tuple(f"{n}.toml" for n in range(5000)),
        tuple(word for n in range(3000) for word in ("--set", f"unknown{n}.key=1")),
    ],
    ids=lambda arguments: f"{arguments[0]:.20} {arguments[-1]:.20}",
)
def test_what_was_typed_takes_less_than_a_screen(command: Any, arguments: tuple[str, ...]) -> None:
    done = command("run", "tiny.toml", "--quiet", *arguments)
    assert done.code in (1, 2)
    check_screen(done.err, most=24)
    assert "Traceback" not in done.err


def test_a_key_of_a_megabyte_takes_less_than_a_screen(neaptide: Any) -> None:
    done = neaptide("run", "tiny.toml", "--set", f"{'k' * 1_000_000}=1")
    assert 2 == done.code
    check_screen(done.err, most=2)


def test_a_warning_of_many_names_takes_a_line(command: Any, folder: Path) -> None:
    names = ",".join(f"p{n}" for n in range(9000))
    done = command("config", "check", "tiny.toml", NEAPTIDE_DISABLED_PLUGINS=names)
    assert 0 == done.code
    check_screen(done.err, most=1)


def calls(work: Callable[[], object], counted: set[Any]) -> int:
    """Return how often functions with the code in `counted` are called or resumed."""
    count = 0

    def profile(frame: Any, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code in counted

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_settings_on_the_command_line_are_read_once(neaptide: Any) -> None:
    def check(sets: int) -> None:
        words = [word for n in range(sets) for word in ("--set", f"model.options.k{n}={n}")]
        done = neaptide("config", "check", "tiny.toml", *words)
        assert 0 == done.code

    check(1)
    few, many = (calls(lambda n=n: check(n), {Token.__init__.__code__}) for n in (200, 800))
    assert few > 0
    assert many < 5 * few


@pytest.mark.parametrize("last", [("--set", "seed=9"), ("--set=seed=9",)])
def test_the_last_of_all_settings_counts(neaptide: Any, last: tuple[str, ...]) -> None:
    words = ("--set", "seed=3", "tiny.toml", "--set=train.steps=9", "--set", "seed=4")
    shown = neaptide("config", "show", *words, "--set=seed=5", *last, "--json").out
    assert (9, 9) == (json.loads(shown)["seed"], json.loads(shown)["train"]["steps"])


def test_a_setting_without_a_value_is_one_line(neaptide: Any) -> None:
    for words in (("--set",), ("--set", "seed=1", "--set"), ("--set", "seed=1", "--set", "-x")):
        done = neaptide("config", "check", "tiny.toml", *words)
        assert 2 == done.code
        assert "--set requires an argument" in done.err


@pytest.mark.timeout(60)
def test_unknown_tables_in_two_files_are_told_in_linear_time(tmp_path: Path) -> None:
    files = [tmp_path / "one.toml", tmp_path / "other.toml"]
    files[0].write_text("seed = 1\n", encoding="utf-8")
    files[1].write_text("\n".join(f"[k{n}]\na = 1" for n in range(20_000)), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(files, specs=installed_plugins())
    assert 20_000 == len(caught.value.problems)
    assert caught.value.problems[-1].endswith(f"@ k19999 (from {files[1]})")
