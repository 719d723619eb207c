"""Where events go, and that a program's own logging stays as it is."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from pages import ROOT, blocks
from support import tiny_trainer

from neaptide.io.logging import CONSOLE, StderrHandler, json_lines, run_logger, said

if TYPE_CHECKING:
    from pathlib import Path


def lines(text: str) -> list[dict[str, Any]]:
    """Return the lines of JSON in what stderr got, without their times."""
    found = [json.loads(line) for line in text.splitlines()]
    assert all(line.pop("time").endswith("+00:00") for line in found)
    return found


def test_every_event_reaches_the_sink() -> None:
    events: list[Any] = []
    log = run_logger(events.append)
    log.info("jump.accepted", step=3, horizon=5)
    log.warning("update.skipped", step=4)
    log.error("checkpoint.failed", step=5)
    assert [
        ("info", "jump.accepted", 3),
        ("warning", "update.skipped", 4),
        ("error", "checkpoint.failed", 5),
    ] == [(event["level"], event["event"], event["step"]) for event in events]


class Unspeakable(Exception):  # noqa: N818 - it is no error of ours
    """Cannot be put into words."""

    def __str__(self) -> str:
        raise ZeroDivisionError


def test_an_error_is_told_in_a_line_that_is_not_long() -> None:
    assert "ValueError: a b" == said(ValueError("a\n  b"))
    assert "KeyError" == said(KeyError())
    assert "Unspeakable: its text cannot be read" == said(Unspeakable())
    long = said(ValueError(f"begin {'x' * 10**6} end"))
    assert (301, "ValueError: begin x", "x end") == (len(long), long[:19], long[-5:])


def test_warnings_are_readable_lines_and_infos_are_silent(caplog: pytest.LogCaptureFixture) -> None:
    log = run_logger()
    log.info("jump.accepted", step=3)
    log.warning("update.skipped", step=4, loss=float("nan"), grad_norm=None, lr=0.1 + 0.2)
    log.error("checkpoint.failed", step=5)
    assert [
        ("WARNING", "update.skipped step=4 loss=nan lr=0.3"),
        ("ERROR", "checkpoint.failed step=5"),
    ] == [(record.levelname, record.getMessage()) for record in caplog.records]


def test_a_program_that_wants_infos_gets_them_with_their_fields(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="neaptide")
    run_logger().info("jump.accepted", step=3)
    (record,) = caplog.records
    assert ("jump.accepted", 3) == (record.fields["event"], record.fields["step"])


def test_json_lines_hold_every_event_and_every_other_warning(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with json_lines():
        log = run_logger()
        log.info("jump.accepted", step=3, loss=float("inf"))
        log.error("checkpoint.failed", step=5, error='a "quoted"\nline')
        CONSOLE.warning("cannot write %s", "steps.csv")
        CONSOLE.debug("nobody asked")
    log.warning("after")
    assert [
        {"level": "info", "event": "jump.accepted", "step": 3, "loss": "inf"},
        {"level": "error", "event": "checkpoint.failed", "step": 5, "error": 'a "quoted"\nline'},
        {"level": "warning", "event": "log", "message": "cannot write steps.csv"},
    ] == lines(capsys.readouterr().err)
    assert ["after"] == [record.getMessage().strip() for record in caplog.records]


def test_json_lines_leave_the_logger_as_it_was() -> None:
    def facts() -> Any:
        return CONSOLE.handlers[:], CONSOLE.level, CONSOLE.propagate

    own = logging.NullHandler()
    CONSOLE.addHandler(own)
    CONSOLE.setLevel(logging.ERROR)
    try:
        before = facts()
        with pytest.raises(ZeroDivisionError), json_lines():
            raise ZeroDivisionError
        assert before == facts()
    finally:
        CONSOLE.removeHandler(own)
        CONSOLE.setLevel(logging.NOTSET)


def test_a_programs_structlog_and_logging_stay_as_they_are() -> None:
    before = structlog.get_config(), structlog.is_configured(), logging.getLogger().handlers[:]
    with json_lines():
        run_logger().info("event", step=1)
    assert before == (
        structlog.get_config(),
        structlog.is_configured(),
        logging.getLogger().handlers[:],
    )


CLOSED = """
import os, sys
from neaptide.io.logging import json_lines, run_logger
reading, writing = os.pipe()
os.close(reading)
os.dup2(writing, 2)
with json_lines():
    for step in range(3):
        run_logger().warning("event", step=step)
print("went on")
"""


def test_a_stderr_nobody_reads_costs_the_lines_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLOSED], capture_output=True, text=True, check=False
    )
    assert (0, "went on\n") == (done.returncode, done.stdout)


def test_the_logger_of_the_documentation_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = [block for block in blocks(ROOT / "docs/logging.md") if block.file]
    (tmp_path / "printer.py").write_text(block.text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    import printer

    trainer, batches = tiny_trainer({"train": {"steps": 3}}, [printer.SPEC])
    with trainer:
        trainer.fit(batches, validation=batches[:1])
        losses = list(trainer.state.history.losses)
    *rows, last = capsys.readouterr().out.splitlines()
    assert rows[-3:] == [f"{step} full {loss}" for step, loss in enumerate(losses, start=1)][-3:]
    assert last.startswith("3 {'val_loss': ")


def test_a_line_that_cannot_be_made_ends_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    handler = StderrHandler()
    for value in ("three", 3):
        handler.handle(logging.makeLogRecord({"msg": "%d batches", "args": (value,)}))
    said = capsys.readouterr().err
    assert "--- Logging error ---" in said
    assert said.endswith("\n3 batches\n")
