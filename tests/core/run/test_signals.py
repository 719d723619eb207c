"""Real signals to a real run: it saves, leaves with the signal's status, and resumes to the bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support import digest_after, environment, some, tiny_trainer

from neaptide import Interrupted
from neaptide.run.signals import stop_on_signals

SCRIPT = Path(__file__).parent / "training_run.py"
STEPS = 24


def start(directory: Path, seconds: float, *flags: str) -> subprocess.Popen[str]:
    """Start the run; the reader of its output is told of every step."""
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(directory), str(STEPS), str(seconds), *flags],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Return the digest a run ends with."""
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return next(line for line in output.splitlines() if line.startswith("digest ")).split()[1]


def wait_for_step(process: subprocess.Popen[str], step: int) -> None:
    """Read the output up to the line of `step`."""
    assert process.stdout is not None
    for line in process.stdout:
        if line == f"step {step}\n":
            return
    pytest.fail(f"the run ended before step {step}: {process.communicate()}")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the digest of a run nobody disturbed."""
    return finish(start(tmp_path_factory.mktemp("whole") / "run", 0.0))


def test_a_hangup_that_is_ignored_at_the_start_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as request:
            os.kill(os.getpid(), signal.SIGHUP)
        assert request.received is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", some([signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))
def test_a_signal_saves_and_the_run_resumes_bitwise(
    tmp_path: Path, number: signal.Signals, uninterrupted: str
) -> None:
    draw = random.Random(number)
    process = start(tmp_path / "run", 0.05)
    wait_for_step(process, draw.randrange(2, STEPS - 4))
    time.sleep(draw.random() * 0.05)  # anywhere within the step that follows
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert 128 + number == process.returncode, errors
    assert f"stopped by signal {int(number)} after update" in output
    assert "go on with --resume auto" in output
    assert uninterrupted == finish(start(tmp_path / "run", 0.0))


def test_a_second_signal_leaves_at_once(tmp_path: Path) -> None:
    process = start(tmp_path / "run", 30.0)
    wait_for_step(process, 1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert time.monotonic() - began < 10  # the step takes 30 s
    assert 128 + signal.SIGTERM == process.returncode


def test_a_second_hangup_does_not_end_a_run_that_saves(tmp_path: Path) -> None:
    process = start(tmp_path / "run", 0.5)
    wait_for_step(process, 1)
    for _ in range(3):  # a shell and the system both tell of a closed terminal
        process.send_signal(signal.SIGHUP)
        time.sleep(0.05)
    output, errors = process.communicate(timeout=60)
    assert 128 + signal.SIGHUP == process.returncode, errors
    assert "go on with --resume auto" in output


IN_A_LONG_CALL = """
import hashlib
from neaptide import stop_on_signals
with stop_on_signals():
    print("calling", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30)  # many minutes, in C
"""


def test_a_second_signal_does_not_wait_for_the_end_of_a_long_call() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", IN_A_LONG_CALL], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert "calling\n" == process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert 128 + signal.SIGINT == process.wait(timeout=30)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # Python 3.12 on
def test_a_signal_to_a_forked_worker_is_none_to_the_run() -> None:
    with stop_on_signals() as stop:
        signal.raise_signal(signal.SIGINT)
        child = os.fork()
        if child == 0:
            signal.raise_signal(signal.SIGINT)
            os._exit(7)
        assert 7 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert signal.SIGINT == stop.received


def test_a_full_disk_costs_checkpoints_but_not_the_run(tmp_path: Path, uninterrupted: str) -> None:
    directory = tmp_path / "run"
    assert uninterrupted == finish(start(directory, 0.0, "limit"))
    events = (directory / "events.jsonl").read_text(encoding="utf-8")
    assert 2 == events.count('"checkpoint.failed"')
    assert not [path for path in (directory / "checkpoints").iterdir() if path.name[0] == "."]


def test_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with stop_on_signals() as stop:
        assert stop.received is None
        signal.raise_signal(signal.SIGTERM)
        assert signal.SIGTERM == stop.received
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def test_a_signal_without_a_run_directory_says_nothing_is_saved() -> None:
    trainer, batches = tiny_trainer({"train": {"steps": 8}})

    def observe(result: Any, state: Any) -> None:
        if state.step == 3:
            signal.raise_signal(signal.SIGINT)

    with trainer, pytest.raises(Interrupted) as caught:
        trainer.fit(batches, observe=observe)
    assert (130, 2) == (caught.value.exit_code, caught.value.received)
    assert "stopped by signal 2 after update 3: not saved: no run.dir" == str(caught.value)


def test_training_outside_the_main_thread_catches_nothing() -> None:
    trainer, batches = tiny_trainer({"train": {"steps": 3}})
    found: list[Any] = []
    with trainer:
        thread = threading.Thread(target=lambda: found.append(trainer.fit(batches)))
        thread.start()
        thread.join()
    assert [3] == [summary["steps"] for summary in found]
    assert isinstance(digest_after(1), str)
