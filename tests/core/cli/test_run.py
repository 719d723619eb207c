"""`neaptide run`: what it prints and leaves behind, and how each failure ends."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from neaptide.checkpoint import checkpoints
from neaptide.config import loads
from neaptide.io.summary import Summary

SUMMARY = r"""
validation loss       \d+\.\d{4}
training loss         \d+\.\d{4} \(last update\)
updates               24
backward skipped      \d+\.\d% \(\d accepted jumps\)
speedup               not measured
time                  \S+( m?s)?
peak memory, warmup   host \d+\.\d MiB
peak memory, full     host \d+\.\d MiB
peak memory, predict  host \d+\.\d MiB
peak memory, correct  host \d+\.\d MiB
run directory         runs/tiny

profiler
"""


def test_a_run_shows_its_course_and_sums_up(command: Any, folder: Path) -> None:
    done = command("run", "tiny.toml")
    assert (0, "") == (done.code, done.err)
    said, _, rest = done.out.partition("\nstep  1/24")
    saves = "checkpoints: every 15 min (run.checkpoint_minutes), on Ctrl-C and at the end"
    assert ["the user's own words", saves] == said.splitlines()
    assert re.search(SUMMARY, rest) is not None, rest
    course, _, _ = rest.partition("\n\n")
    evaluated = re.findall(r"step +(\d+)/24  \w+ +validation loss \d", course)
    assert ["10", "20", "24"] == evaluated
    assert re.search(r"jump over \d updates accepted", course)
    summary = json.loads((folder / "runs/tiny/summary.json").read_text(encoding="utf-8"))
    assert f"validation loss       {summary['val_loss']:.4f}\n" in rest


def test_peaks_on_a_device_and_missing_losses_are_summed_up() -> None:
    summary = {
        "val_loss": None,
        "final_loss": 1.0,
        "steps": 10,
        "backward_skipped": 0.25,
        "jumps": 2,
        "seconds": 3723.0,
        "peak_bytes": {"full": {"device_bytes": 3 << 29, "host_bytes": 1 << 20}},
    }
    rows = dict(Summary(summary).rows())
    assert {
        "validation loss": "none",
        "training loss": "1.0000 (last update)",
        "updates": "10",
        "backward skipped": "25.0% (2 accepted jumps)",
        "speedup": "not measured",
        "time": "1:02:03",
        "peak memory, full": "device 1.5 GiB, host 1.0 MiB",
    } == rows


def test_a_run_repeats_from_its_own_config_with_json_alone_on_stdout(
    command: Any, folder: Path
) -> None:
    first = command("run", "tiny.toml", "--quiet", "--set", "run.dir=first")
    assert (0, "") == (first.code, first.err)
    assert "step  1/24" not in first.out
    again = command("run", "first/config.toml", "--set", "run.dir=again", "--json")
    assert 0 == again.code, again.err
    summary = json.loads(again.out)
    written = {
        name: json.loads((folder / name / "summary.json").read_text(encoding="utf-8"))
        for name in ("first", "again")
    }
    assert summary == {**written["again"], "run_dir": "again"}
    assert written["first"]["digest"] == summary["digest"]
    assert "the user's own words" == again.err.splitlines()[0]
    assert "step 24/24  full" in again.err


@pytest.mark.parametrize("quiet", [True, False])
def test_a_plugin_says_in_a_line_what_it_chose(neaptide: Any, *, quiet: bool) -> None:
    set_ = ("--set", "plugins.mixed-precision.dtype='bf16'", *(["--quiet"] if quiet else []))
    done = neaptide("run", "tiny.toml", *set_)
    line = "mixed-precision: bf16 in warmup, full, correct, predict, evaluate\n"
    assert quiet is not (line in done.out)


def test_the_directory_is_named_after_the_first_file(neaptide: Any, folder: Path) -> None:
    (folder / "mine.toml").write_text("seed = 5\n", encoding="utf-8")
    two = ("--set", "train.steps=2")
    assert 0 == neaptide("run", "mine.toml", "tiny.toml", "--quiet", *two).code
    stored = loads((folder / "runs/mine/config.toml").read_text(encoding="utf-8"))
    assert ("runs/mine", 5, 2) == (
        stored["run"]["dir"],
        stored["seed"],
        stored["train"]["steps"],
    )


def test_the_run_directory_says_where_settings_came_from_and_on_what_it_ran(
    neaptide: Any, folder: Path
) -> None:
    sets = ("--set", "train.steps=3", "--log", "console")
    assert 0 == neaptide("run", "tiny.toml", "--quiet", *sets).code
    origins = json.loads((folder / "runs/tiny/origins.json").read_text(encoding="utf-8"))
    assert "tiny.toml" in origins["model.name"]
    assert "--set" in origins["train.steps"]
    assert ("the first file's name", "--log") == (origins["run.dir"], origins["run.log"])
    facts = json.loads((folder / "runs/tiny/machine.json").read_text(encoding="utf-8"))
    assert facts["memory"]["limit_bytes"] > 0
    assert "neaptide" in facts["distributions"]


@pytest.mark.parametrize("how", [("--log", "json"), ("--set", "run.log=json")])
def test_events_for_machines_are_lines_of_json_on_stderr(
    command: Any, folder: Path, how: tuple[str, str]
) -> None:
    done = command("run", "tiny.toml", "--quiet", *how)
    assert 0 == done.code
    events = [json.loads(line) for line in done.err.splitlines()]
    written = (folder / "runs/tiny/events.jsonl").read_text(encoding="utf-8").splitlines()
    assert list(map(json.loads, written)) == events
    assert "jump.accepted" in {event["event"] for event in events}
    stored = loads((folder / "runs/tiny/config.toml").read_text(encoding="utf-8"))
    assert "json" == stored["run"]["log"]


def test_a_directory_with_a_run_is_refused_before_the_model_is_built(
    neaptide: Any, folder: Path
) -> None:
    assert 0 == neaptide("run", "tiny.toml", "--quiet").code
    (folder / "told.py").write_text(
        "def model():\n    raise AssertionError('the model was built')\n", encoding="utf-8"
    )
    again = neaptide("run", "tiny.toml", "--quiet", "--set", "model.name=told:model")
    assert 2 == again.code
    assert "holds checkpoints of an earlier run" in again.err


def test_a_run_goes_on_only_when_asked_to(neaptide: Any, folder: Path) -> None:
    short = ("run", "tiny.toml", "--quiet", "--set", "train.steps=13")
    assert 0 == neaptide(*short).code
    again = neaptide(*short)
    way_out = "go on from them with --resume auto (resume='auto'), or set run.dir elsewhere"
    expected = f"error: {folder}/runs/tiny holds checkpoints of an earlier run; {way_out}\n"
    assert (2, expected) == (again.code, again.err)
    finished = neaptide(*short, "--resume", "auto")
    assert (0, "") == (finished.code, finished.err)
    assert ["updates", "13"] in [line.split() for line in finished.out.splitlines()]
    (only,) = checkpoints(Path("runs/tiny/checkpoints"))
    changed = ("run", "tiny.toml", "--quiet", "--set", "train.steps=15", "--resume", only)
    refused = neaptide(*changed)
    assert 2 == refused.code
    assert "train.steps" in refused.err
    assert 0 == neaptide(*changed, "--allow-changes").code
    assert [13, 15] == [int(path.name[-8:]) for path in checkpoints(only.parent)]


@pytest.mark.parametrize(
    ("sets", "code", "error"),
    [
        (
            ["model.name=tiny_task:modle"],
            2,
            "'tiny_task' has no 'modle' (did you mean 'model'?) @ model.name",
        ),
        (
            ["model.options.widht=3"],
            2,
            "unknown option 'widht' (did you mean 'width'?) @ model.options.widht",
        ),
        (
            ["data.name=tiny_taks:data"],
            2,
            (
                "cannot import 'tiny_taks': No module named 'tiny_taks'; is it on PYTHONPATH? "
                "@ data.name"
            ),
        ),
        (
            ["optimizer.name=adamv"],
            2,
            "unknown optimizer 'adamv' (did you mean 'adam'?); there is",
        ),
        (["model.name=''"], 2, "name a model: 'builtin:byte-gpt' or"),
        (
            ["model.name=tiny_task:diverging", "train.max_skipped=2"],
            5,
            (
                "3 updates in a row had a non-finite loss or gradient (step 3, loss nan); lower "
                "optimizer.lr"
            ),
        ),
        (
            ["model.name=tiny_task:leaving"],
            1,
            "'tiny_task:leaving' raised SystemExit(7) @ model.name",
        ),
        (["model.name=tiny_task:too_large"], 3, "does not fit: the model has a tensor of"),
        (
            ["model.name=tiny_task:too_large", "run.plan=off"],
            4,
            "out of memory: [enforce fail at",
        ),
        (
            ["model.name=tiny_task:out_of_host_memory"],
            4,
            (
                "out of memory: the host has none left; lower train.batch_size, or enable a plugin "
                "that saves memory"
            ),
        ),
        (
            ["model.name=tiny_task:out_of_device_memory"],
            4,
            "out of memory: CUDA out of memory. Tried to allocate 2.00 GiB.; lower",
        ),
        (["data.name=tiny_task:too_large_a_batch"], 4, "out of memory: [enforce fail at"),
        (
            ["data={name = 'builtin:digits'}", "train.batch_size=1000000000000"],
            2,
            "the batch size 1000000000000 is larger than the training data of 1438 images; lower",
        ),
        (
            [
                "data.name=builtin:text-file",
                "data.options={path = 'text', context = 1, validation_share = 0.2}",
            ],
            2,
            "the batch size 16 is larger than the training data of 12 bytes; lower it",
        ),
    ],
)
def test_what_goes_wrong_is_one_line_and_a_code(
    neaptide: Any, sets: list[str], code: int, error: str
) -> None:
    Path("text").write_text("fifteen bytes..", encoding="utf-8")
    given = [word for setting in sets for word in ("--set", setting)]
    done = neaptide("run", "tiny.toml", "--quiet", "--json", *given)
    (line,) = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: {error}")
    assert "Traceback" not in done.err
    assert {"error": line.removeprefix("error: "), "exit_code": code} == json.loads(done.out)
    assert code == done.code


def test_an_exception_of_the_users_code_keeps_its_traceback(neaptide: Any) -> None:
    done = neaptide("run", "tiny.toml", "--quiet", "--set", "model.name=tiny_task:broken")
    assert 1 == done.code
    assert 'tiny_task.py", line' in done.err
    assert [
        "error: KeyError: 'a line\\nand another'",
        "note: raised by 'tiny_task:broken' @ model.name",
    ] == done.err.splitlines()[-2:]


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (["model.name=tiny_task:leaving_in_forward"], 0),
        # The caller sees the lowest eight bits.
        (["model.name=tiny_task:leaving_in_forward", "model.options.code=256"], 256),
        (["data.name=tiny_task:leaving_data"], 0),
    ],
)
def test_a_run_that_its_own_code_ended_is_no_success(
    neaptide: Any, folder: Path, settings: list[str], code: int
) -> None:
    set_ = [argument for setting in settings for argument in ("--set", setting)]
    done = neaptide("run", "tiny.toml", "--quiet", "--json", *set_)
    said = f"code of the task or of a plugin called sys.exit({code})"
    assert (1, {"error": said, "exit_code": 1}) == (done.code, json.loads(done.out))
    assert 'tiny_task.py", line' in done.err
    assert not (folder / "runs/tiny/summary.json").exists()


def test_what_a_plugin_lacks_is_one_line(neaptide: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # There is no environment without the extra at hand: its package is not to be found.
    monkeypatch.setattr("neaptide_toolkit.loggers.logger.find_spec", lambda name: None)
    done = neaptide("run", "tiny.toml", "--set", "plugins.tensorboard={}")
    text = 'tensorboard is not installed: pip install "neaptide[tensorboard]"'
    assert (2, f"error: {text} @ plugins.tensorboard\n") == (done.code, done.err)


PLUGINS = """
import attrs
from neaptide import Plugin, PluginSpec, hookimpl

class Raising(Plugin):
    @hookimpl
    def on_run_start(self):
        raise ZeroDivisionError("out of the plugin")

class Reporting(Plugin):
    def report(self):
        raise ZeroDivisionError("no report")

RAISING = PluginSpec(name="raising", load="guests:Raising")
REPORTING = PluginSpec(name="reporting", load="guests:Reporting")
"""


@pytest.fixture
def guests(folder: Path) -> dict[str, str]:
    """Install two plugins; return the environment that finds them."""
    site = folder / "site"
    info = site / "guests-1.0.dist-info"
    info.mkdir(parents=True)
    # The manifest stands beside the class here, so this one does import torch.
    (site / "guests.py").write_text(PLUGINS, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guests\nVersion: 1.0\n")
    entries = "raising = guests:RAISING\nreporting = guests:REPORTING\n"
    (info / "entry_points.txt").write_text(f"[neaptide.plugins]\n{entries}")
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path}


def test_an_exception_of_a_plugin_names_it_and_its_hook(
    command: Any, guests: dict[str, str]
) -> None:
    done = command("run", "tiny.toml", "--set", "plugins.raising={}", **guests)
    assert 1 == done.code
    assert 'guests.py", line' in done.err
    assert [
        "error: ZeroDivisionError: out of the plugin",
        "note: raised by plugin 'raising' in hook 'on_run_start'",
    ] == done.err.splitlines()[-2:]


def test_a_report_that_fails_costs_only_the_report(command: Any, guests: dict[str, str]) -> None:
    sets = ("--set", "plugins.reporting={}", "--set", "train.steps=13")
    done = command("run", "tiny.toml", "--quiet", *sets, **guests)
    line = "WARNING: plugin 'reporting' cannot report: ZeroDivisionError: no report\n"
    assert (0, line) == (done.code, done.err)
    assert "run directory" in done.out
    assert "\nprofiler\n" in done.out


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes in a read-only directory, too")
def test_a_read_only_directory_is_one_line(neaptide: Any, folder: Path) -> None:
    (folder / "runs").mkdir(mode=0o555)
    done = neaptide("run", "tiny.toml")
    where = f"cannot write in the run directory {folder}/runs/tiny: Permission denied"
    assert (2, f"error: {where}; set run.dir elsewhere\n") == (done.code, done.err)


def test_a_run_directory_that_is_a_file_is_one_line(neaptide: Any, folder: Path) -> None:
    (folder / "runs").write_text("in the way", encoding="utf-8")
    done = neaptide("run", "tiny.toml")
    where = f"cannot write in the run directory {folder}/runs/tiny: runs is not a folder"
    assert (2, f"error: {where}; set run.dir elsewhere\n") == (done.code, done.err)


def test_a_reader_that_goes_away_does_not_end_the_run(start: Any, folder: Path) -> None:
    process = start("run", "tiny.toml")
    assert process.stdout.readline()
    process.stdout.close()
    assert "" == process.stderr.read()
    assert 0 == process.wait(timeout=60)
    summary = json.loads((folder / "runs/tiny/summary.json").read_text(encoding="utf-8"))
    assert 24 == summary["steps"]


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_end_the_run(
    folder: Path, environment: dict[str, str], closed: str
) -> None:
    command = f'exec "$0" -m neaptide run tiny.toml {closed}'
    arguments = ["sh", "-c", command, sys.executable]
    assert 0 == subprocess.run(arguments, cwd=folder, env=environment, check=False).returncode
    summary = json.loads((folder / "runs/tiny/summary.json").read_text(encoding="utf-8"))
    assert 24 == summary["steps"]


def resize(terminal: int, columns: int) -> None:
    """Make a terminal so many columns wide."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


def on_a_terminal(
    folder: Path, env: dict[str, str], *arguments: str, then: dict[bytes, int] | None = None
) -> str:
    """Return what a run writes on a terminal of 100 columns.

    `then` maps texts to the columns the terminal has from their first appearance on.
    """
    leader, follower = pty.openpty()
    resize(leader, 100)
    process = subprocess.Popen(
        [sys.executable, "-m", "neaptide", "run", "tiny.toml", *arguments],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=subprocess.PIPE,
    )
    os.close(follower)
    text = b""
    waiting = dict(then or {})
    while True:
        try:
            text += os.read(leader, 4096)
        except OSError:  # what a terminal answers once nobody writes to it
            break
        for seen in [seen for seen in waiting if seen in text]:
            resize(leader, waiting.pop(seen))
    os.close(leader)
    _, errors = process.communicate(timeout=60)
    assert (0, b"") == (process.returncode, errors)
    assert not waiting
    return text.decode()


ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")


def test_a_terminal_that_becomes_narrow_is_drawn_on_within_its_width(
    folder: Path, environment: dict[str, str]
) -> None:
    pauses = ("--set", "data.options.seconds=0.1")
    then = {b"step 10  validation loss": 50}
    text = on_a_terminal(folder, environment, *pauses, then=then)
    before, _, after = text.partition("step 20  validation loss")
    assert 50 < max(map(len, ESCAPES.sub("\n", before).split("\n"))) <= 100
    live, _, _ = after.partition("run directory")
    drawn = ESCAPES.sub("\n", live).split("\n")
    assert any("24/24" in line for line in drawn)
    assert max(map(len, drawn)) <= 50


def test_a_terminal_without_colours_gets_a_line_that_changes(
    folder: Path, environment: dict[str, str]
) -> None:
    text = on_a_terminal(folder, {**environment, "NO_COLOR": "1"})
    assert "\x1b[?25l" in text
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", text)


def test_a_dumb_terminal_gets_plain_lines(folder: Path, environment: dict[str, str]) -> None:
    text = on_a_terminal(folder, {**environment, "TERM": "dumb"})
    assert "step  1/24  warmup   lr 0.001  jumps 0" in text
    assert "\x1b" not in text


def test_a_terminal_gets_colours_and_a_table(folder: Path, environment: dict[str, str]) -> None:
    text = on_a_terminal(folder, environment)
    assert "\x1b[32mcorrect" in text or "\x1b[34mfull" in text
    assert "step 24  validation loss" in text
    assert "\x1b[1mspeedup" in text
    assert "not measured" in text
