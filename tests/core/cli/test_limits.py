"""What the system refuses to a process ends a run in one line that says which limit to raise."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from neaptide.errors import is_out_of_memory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TASK = """
import resource, threading
from pathlib import Path
import torch
from torch import nn
from tiny_task import model


def convolving():
    module, loss_fn = model()
    inputs = torch.ones(1, 64, 4, 4)
    layers = [nn.Conv2d(64, 64, size, padding=size // 2) for size in (1, 3, 5, 7, 9, 11)]
    def limited(model, batch):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(),) * 2)
        for layer in layers:
            layer(inputs)
        return loss_fn(model, batch)
    return module, limited


def threaded():
    threading.Thread(target=print).start()


def without_files():
    with open("/dev/null") as first:
        resource.setrlimit(resource.RLIMIT_NOFILE, (first.fileno() + 1,) * 2)
        open("/dev/null")
"""


@pytest.fixture
def limited(folder: Path, environment: dict[str, str]) -> Callable[..., Any]:
    """Return `neaptide run` in a process with limits, of a user whom limits on threads concern."""
    (folder / "limited_task.py").write_text(TASK, encoding="utf-8")

    def run(
        limit: int, value: int, *sets: str, prefix: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        set_ = [word for setting in sets for word in ("--set", setting)]
        return subprocess.run(
            [*prefix, sys.executable, "-m", "neaptide", "run", "tiny.toml", "--quiet", *set_],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            preexec_fn=lambda: resource.setrlimit(limit, (value, value)),
        )

    return run


@pytest.fixture
def as_a_user() -> tuple[str, ...]:
    """Return a prefix of a command: the limit on threads does not concern root."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("root has no limit on threads")
    kept = "+dac_override,+dac_read_search"
    ids = ("--reuid=54321", "--regid=54321", "--clear-groups")
    prefix = ("setpriv", *ids, f"--inh-caps={kept}", f"--ambient-caps={kept}")
    probe = subprocess.run([*prefix, sys.executable, "-c", ""], check=False, capture_output=True)
    if probe.returncode:
        pytest.skip(f"no other user here: {probe.stderr.decode().strip()}")
    return prefix


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("could not create a primitive", True),
        ("[enforce fail] DefaultCPUAllocator: can't allocate memory", True),
        ("could not create a primitive descriptor for a convolution", False),
        ("shapes cannot be multiplied", False),
    ],
)
def test_texts_that_mean_no_memory(text: str, *, meant: bool) -> None:
    assert is_out_of_memory(RuntimeError(text)) is meant


def test_onednn_without_memory_is_out_of_memory(limited: Any) -> None:
    done = limited(
        resource.RLIMIT_CORE, 0, "model.name=limited_task:convolving", "run.dir=runs/onednn"
    )
    assert 4 == done.returncode, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "out of memory" in line
    assert "could not create a primitive" in line


@pytest.mark.parametrize("files", [9, 16])
def test_too_few_files_are_one_line(limited: Any, files: int) -> None:
    done = limited(resource.RLIMIT_NOFILE, files)
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "Too many open files" in line
    assert "; raise ulimit -n" in line
    assert 1 == line.count("ulimit")
    assert "elsewhere" not in line


def test_too_few_files_for_the_task_are_one_line(limited: Any) -> None:
    done = limited(resource.RLIMIT_CORE, 0, "model.name=limited_task:without_files")
    assert 1 == done.returncode
    assert "Traceback" not in done.stderr
    (line, _note) = done.stderr.splitlines()
    assert line.startswith("error: OSError: [Errno 24] Too many open files")
    assert line.endswith("; raise ulimit -n")


def test_a_run_that_can_start_no_thread_trains(
    limited: Any, folder: Path, as_a_user: tuple[str, ...]
) -> None:
    done = limited(resource.RLIMIT_NPROC, 1, prefix=as_a_user)
    assert (0, "") == (done.returncode, done.stderr)
    assert (folder / "runs/tiny/summary.json").is_file()


def test_a_task_that_can_start_no_thread_is_one_line(
    limited: Any, as_a_user: tuple[str, ...]
) -> None:
    done = limited(resource.RLIMIT_NPROC, 1, "model.name=limited_task:threaded", prefix=as_a_user)
    assert 1 == done.returncode
    said = "error: RuntimeError: can't start new thread; raise ulimit -u"
    assert [
        said,
        "note: raised by 'limited_task:threaded' @ model.name",
    ] == done.stderr.splitlines()
