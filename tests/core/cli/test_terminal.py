"""What anybody wrote reaches a terminal as visible text, from every verb."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest
import tomlkit
import warm
from hypothesis import given
from hypothesis import strategies as st

from neaptide.text import visible

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = "a\x1b[31mred\x1b]0;title\x07 \x9b2J\rback\u202eleft\u2066\u2028line\x7f\x00"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028]")

NO_NUL = HOSTILE.replace("\0", "")
TASK = f"""
import logging, sys, threading, warnings
from tiny_task import *
HOSTILE = {HOSTILE!r}

class Odd(BaseException): ...

class Gone:
    def __del__(self): raise ValueError(HOSTILE)

def warned():
    warnings.warn(HOSTILE)
    return model()

def logged():
    logging.getLogger("anybody").warning("%s", HOSTILE + "\\nerror: forged")
    return model()

def misfit():
    for name in ("anybody", "neaptide.anybody"):
        logging.getLogger(name).warning(HOSTILE + " %d of %d", HOSTILE, 3)
        logging.getLogger(name).warning("%s is odd " + HOSTILE, Unprintable())
    return model()

class Unprintable:
    def __str__(self): raise ValueError(HOSTILE)

def threaded():
    def work(): raise ValueError(HOSTILE)
    thread = threading.Thread(target=work, name=HOSTILE)
    thread.start()
    thread.join()
    return model()

def ignored():
    Gone()
    return model()

def leaving():
    module, loss_fn = model()
    module.register_forward_hook(lambda *_: sys.exit(HOSTILE))
    return module, loss_fn

def odd():
    module, loss_fn = model()
    module.register_forward_hook(lambda *_: raise_(Odd(HOSTILE)))
    return module, loss_fn

def noted():
    error = ValueError(HOSTILE)
    error.add_note(HOSTILE)
    raise error
"""


def on_a_terminal(folder: Path, environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    """Return a command's exit code, and all that it writes on a terminal without colours."""
    leader, follower = pty.openpty()
    text = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # what a terminal answers once nobody writes to it
            while True:
                text.extend(os.read(leader, 4096))

    reading = threading.Thread(target=read)
    reading.start()
    words = ["-m", "neaptide", *arguments]
    env = {**environment, "TERM": "dumb", "NO_COLOR": "1"}
    code = warm.run_into(follower, follower, words, cwd=folder, env=env, timeout=60)
    os.close(follower)
    reading.join()
    os.close(leader)
    return code, text.decode().replace("\r\n", "\n")  # the terminal's own


@pytest.mark.parametrize(
    ("factory", "code"),
    [
        ("warned", 0),
        ("logged", 0),
        ("misfit", 0),
        ("threaded", 0),
        ("ignored", 0),
        ("leaving", 1),
        ("odd", 1),
        ("noted", 1),
    ],
)
def test_what_code_says_in_any_way_reaches_no_terminal_raw(
    folder: Path, environment: dict[str, str], factory: str, code: int
) -> None:
    (folder / "hostile_task.py").write_text(TASK, encoding="utf-8")
    set_ = ("--set", f"model.name=hostile_task:{factory}", "--set", "train.steps=2")
    found, text = on_a_terminal(folder, environment, "run", "tiny.toml", *set_)
    assert code == found, text
    assert [] == OBEYED.findall(text)
    assert "\\u001b[31mred" in text
    assert "\nerror: forged" not in text


def test_a_record_that_cannot_be_filled_in_is_a_line(
    folder: Path, environment: dict[str, str]
) -> None:
    (folder / "hostile_task.py").write_text(TASK, encoding="utf-8")
    for log in ("console", "json"):
        sets = ("model.name=hostile_task:misfit", "train.steps=2", f"run.dir=runs/{log}")
        run = ("run", "tiny.toml", *(f"--set={each}" for each in sets), "--log", log)
        code, text = on_a_terminal(folder, environment, *run)
        assert 0 == code, text
        assert [] == OBEYED.findall(text)
        assert "Traceback" not in text
        assert "Logging error" not in text
        assert 2 == text.count("cannot be filled in (TypeError: %d format: a real number")
        assert 2 == text.count("cannot be filled in (ValueError: ")


def test_a_broken_verb_and_a_plugin_reach_no_terminal_raw(
    folder: Path, environment: dict[str, str]
) -> None:
    site = folder / "site"
    info = site / "guests-1.0.dist-info"
    info.mkdir(parents=True)
    raising = f"raise ValueError({HOSTILE!r})\n"
    (site / "x_raising.py").write_text(raising, encoding="utf-8")
    spec = f"SPEC = PluginSpec(name='x-told', load={HOSTILE!r}, summary={HOSTILE!r})\n"
    told = f"from neaptide import PluginSpec\n{spec}"
    (site / "x_told.py").write_text(told, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guests\nVersion: 1.0\n")
    verbs = "[neaptide.verbs]\nx-verb = x_raising:verb\n"
    plugins = "[neaptide.plugins]\nx-told = x_told:SPEC\nx-broken = x_raising:SPEC\n"
    (info / "entry_points.txt").write_text(verbs + plugins, encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(site), environment.get("PYTHONPATH")]))
    for arguments in (
        ("--help",),
        ("x-verb",),
        ("plugins", "list"),
        ("plugins", "show", "x-told"),
        ("plugins", "show", "x-broken"),
        ("config", "check", "tiny.toml", "--set", "plugins.x-broken={}"),
        ("run", "tiny.toml", "--set", "plugins.x-told={}"),
    ):
        _, text = on_a_terminal(folder, {**environment, "PYTHONPATH": path}, *arguments)
        assert [] == OBEYED.findall(text), arguments
        assert "red" in text, arguments


@given(st.text())
def test_visible_text_is_obeyed_by_no_terminal_and_loses_nothing(text: str) -> None:
    shown = visible(text, kept="")
    assert shown.isprintable()
    assert visible(shown, kept="") == shown
    again = re.sub(
        r"\\u([0-9a-f]{4})|\\U([0-9a-f]{8})", lambda m: chr(int(m[1] or m[2], 16)), shown
    )
    assert "\\" in text or text == again


def configured(folder: Path, **changes: Any) -> str:
    """Write a configuration with a hostile text in it; return its name."""
    document = tomlkit.parse((folder / "tiny.toml").read_text(encoding="utf-8"))
    for path, value in changes.items():
        table: Any = document
        *parents, last = path.split("__")
        for part in parents:
            table = table.setdefault(part, {})
        table[last] = value
    (folder / "hostile.toml").write_text(tomlkit.dumps(document), encoding="utf-8")
    return "hostile.toml"


@pytest.mark.parametrize(
    "changes",
    [
        {"model__name": f"{HOSTILE}:model"},
        {"model__name": f"tiny_task:{HOSTILE}"},
        {"model__options": {HOSTILE: 1}},
        {"plugins": {HOSTILE: {}}},
        {HOSTILE: 1},
        {"run__dir": f"runs/{HOSTILE}".replace("\0", "")},
        {"train__device": HOSTILE},
        {"optimizer__name": HOSTILE},
    ],
    ids=lambda changes: next(iter(changes)).split("\x1b")[0],
)
@pytest.mark.parametrize(
    "verb", [("run",), ("config", "check"), ("config", "show"), ("config", "show", "--origin")]
)
def test_a_configuration_reaches_no_terminal_raw(
    neaptide: Any, folder: Path, verb: tuple[str, ...], changes: dict[str, Any]
) -> None:
    done = neaptide(*verb, configured(folder, **changes))
    assert [] == OBEYED.findall(done.out + done.err)


def test_an_exception_and_a_path_reach_no_terminal_raw(neaptide: Any, folder: Path) -> None:
    task = (folder / "tiny_task.py").read_text(encoding="utf-8")
    raising = f"{task}\n\ndef hostile():\n    raise ValueError({HOSTILE!r})\n"
    (folder / "tiny_task.py").write_text(raising, encoding="utf-8")
    commands = [
        ("run", "tiny.toml", "--set", "model.name=tiny_task:hostile"),
        *(
            (*verb, HOSTILE.replace("\0", ""))
            for verb in (("run",), ("config", "check"), ("report",), ("ckpt", "list"))
        ),
        ("config", "convert", HOSTILE.replace("\0", "")),
        ("plugins", "show", HOSTILE.replace("\0", "")),
        ("presets", "copy", HOSTILE.replace("\0", ""), "x.toml"),
    ]
    for command in commands:
        done = neaptide(*command)
        assert done.code in (1, 2), command
        assert [] == OBEYED.findall(done.out + done.err), command


def test_a_report_names_its_page_in_visible_text(neaptide: Any, folder: Path) -> None:
    run = folder / HOSTILE.replace("\0", "").replace("/", "")
    assert 0 == neaptide("run", "tiny.toml", "--quiet").code
    (folder / "runs/tiny").rename(run)
    done = neaptide("report", run)
    assert 0 == done.code
    assert "page: " in done.out
    assert [] == OBEYED.findall(done.out + done.err)


def test_facts_of_a_checkpoint_reach_no_terminal_raw(neaptide: Any, folder: Path) -> None:
    from neaptide.checkpoint import save

    save(folder / "step-00000001", {}, 1, {"phase": HOSTILE})
    done = neaptide("ckpt", "list", folder)
    assert 0 == done.code
    assert [] == OBEYED.findall(done.out + done.err)
    assert HOSTILE == json.loads(neaptide("ckpt", "list", folder, "--json").out)[0]["phase"]
