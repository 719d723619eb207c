"""Processes for tests that begin with torch imported, which takes longer than most commands do.

Each is forked from one that has imported what a run imports of others, and nothing else. It has
streams, a directory, variables and an end of its own, and imports neaptide itself. A test of what
is imported, of a limit of the process or of a signal starts one from nothing, with `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

IMPORTED = (
    "attrs", "cattrs", "cyclopts", "pluggy", "psutil", "safetensors.torch", "structlog", "tomlkit",
    "torch", "torch._dynamo", "triton",
)  # fmt: skip
"""Modules of others that a run imports."""
AT_START = ("PYTHON", "OMP_", "GOMP_", "MKL_", "KMP_", "LD_", "MALLOC_", "CUDA", "TORCH", "TRITON")
"""How variables begin that are read when Python starts or torch is imported."""
OF_PATH = ("PYTHONPATH", "PYTHONSAFEPATH")
"""Those of them that are heeded in a forked process, too."""
Done = subprocess.CompletedProcess[str]


def run(
    arguments: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> Done:
    """Run Python with `-m MODULE …` or `-c CODE …` to its end; return what it printed."""
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8") as err,
    ):
        code = run_into(out.fileno(), err.fileno(), arguments, cwd=cwd, env=env, timeout=timeout)
        os.lseek(out.fileno(), 0, os.SEEK_SET)
        os.lseek(err.fileno(), 0, os.SEEK_SET)
        return Done([sys.executable, *arguments], code, out.read(), err.read())


def run_into(
    out: int,
    err: int,
    arguments: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> int:
    """Run Python as `run` does, with its output in open files; return its exit code."""
    env = dict(os.environ if env is None else env)
    if not _can_be_forked(env):
        command = [sys.executable, *arguments]
        files: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
        done = subprocess.run(command, check=False, cwd=cwd, env=env, timeout=timeout, **files)
        return done.returncode
    request = json.dumps([list(arguments), str(cwd or Path.cwd()), env]).encode()
    ours, theirs = os.pipe()
    with open(ours, "rb", buffering=0) as told, tempfile.TemporaryFile() as asked:  # noqa: PTH123
        asked.write(request)
        asked.flush()
        try:
            socket.send_fds(_server(), [b"1"], [asked.fileno(), out, err, theirs])
        finally:
            os.close(theirs)
        pid = int(told.readline())
        if not select.select([told], [], [], timeout)[0]:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired([sys.executable, *arguments], timeout)
        return int(told.readline())


def _can_be_forked(env: Mapping[str, str]) -> bool:
    if env.get("TERM") == "dumb":  # what is imported here would still reset the colours at its end
        return False
    # The memory and the threads of a simulated device are not forked.
    if sys.platform != "linux" or "simulated_gpu" in sys.modules:
        return False
    return _at_start(env) == _at_start(os.environ)


def _at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in env.items()
        if name.startswith(AT_START) and name not in OF_PATH
    }


@functools.cache
def _server() -> socket.socket:
    """Start the process that is forked; it ends with this one."""
    ours, theirs = socket.socketpair()
    env = {name: value for name, value in os.environ.items() if name not in OF_PATH}
    with theirs:
        number = theirs.fileno()
        command = [sys.executable, "-P", __file__, str(number)]
        process = subprocess.Popen(command, pass_fds=[number], env=env)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve(number: int) -> list[str]:
    """Answer requests; return, in a process that was forked for one, its arguments."""
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # a collection would copy the pages of all that is shared
    with socket.socket(fileno=number) as asking:
        while True:
            message, files, *_ = socket.recv_fds(asking, 1, 4)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG if message else 0)[0]:
                    pass
            if not message:
                os._exit(0)
            if os.fork() == 0:
                break
            for file in files:
                os.close(file)
    asked, out, err, told = files
    if pid := os.fork():
        os.write(told, f"{pid}\n".encode())
        for file in (out, err):
            os.close(file)
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(OSError):  # nobody asks any more
            os.write(told, f"{ended}\n".encode())
        os._exit(0)
    os.close(told)
    os.lseek(asked, 0, os.SEEK_SET)
    with open(asked, "rb") as file:  # noqa: PTH123
        arguments, cwd, env = json.loads(file.read())
    _become(cwd, env, out, err)
    return arguments


def _become(cwd: str, env: dict[str, str], out: int, err: int) -> None:
    """Take over the streams, the directory and the variables of a request."""
    null = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((null, out, err)):
        os.dup2(file, number)
        os.close(file)
    # As they are made when Python starts, of what they are now.
    for name, number in (("stdout", 1), ("stderr", 2)):
        old = getattr(sys, name)
        binary = open(number, "wb", closefd=False)  # noqa: SIM115
        errors = "backslashreplace" if name == "stderr" else old.errors
        lines = name == "stderr" or os.isatty(number)
        new = io.TextIOWrapper(binary, old.encoding, errors, line_buffering=lines)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = [*filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    importlib.invalidate_caches()


def _execute(arguments: list[str]) -> None:
    """Be `python ARGUMENTS`."""
    kind, what, *rest = arguments
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, "" if kind == "-c" else str(Path.cwd()))
    sys.argv[:] = [kind, *rest]
    try:
        if kind == "-m":
            runpy._run_module_as_main(what)  # type: ignore[attr-defined]
        else:
            exec(compile(what, "<string>", "exec"), sys.modules["__main__"].__dict__)
    except SystemExit as error:
        if not isinstance(error.code, int | None):
            raise
        _end(error.code or 0)
        raise
    _end(0)


def _end(code: int) -> None:
    """End as Python does, but leave the modules, which take long to take apart; or return."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(Exception):
        for file in (sys.stdout, sys.stderr):
            file.flush()
        os._exit(code & 0xFF)


if __name__ == "__main__":
    _execute(_serve(int(sys.argv[1])))
