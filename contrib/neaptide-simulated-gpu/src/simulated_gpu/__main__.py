"""Run a Python program on the simulated device, and tell its races.

python -m simulated_gpu [--profile PATH] [--capacity GIB] PROGRAM.py [ARGUMENT ...]
python -m simulated_gpu [--profile PATH] [--capacity GIB] -m MODULE [ARGUMENT ...]

Python programs that it starts are on the device, too. The exit status is the program's; a program
that ended well and raced ends with 1.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import simulated_gpu
from simulated_gpu import _programs

if TYPE_CHECKING:
    from collections.abc import Sequence

RACED = 1


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """Parse the options of this command; what follows the program is the program's."""
    usage, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m simulated_gpu",
        description=usage,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--profile", type=Path, help="the machine, a JSON file")
    parser.add_argument("--capacity", type=float, metavar="GIB", help="memory of the device")
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(given)
    if not options.module and not Path(options.program).exists():
        parser.error(f"there is no program {options.program!r}")
    try:
        options.rates = _programs.rates_of(options.profile, options.capacity)
        simulated_gpu.configure(**options.rates)
    except (OSError, ValueError, KeyError) as error:
        parser.error(str(error.args[0] if isinstance(error, KeyError) else error))
    return options


def run(program: str, own: Sequence[str], *, module: bool) -> int:
    """Run the program in this process, as `python` would; return its exit status."""
    sys.argv = [program, *own]
    sys.path[0] = str(Path.cwd() if module else Path(program).resolve().parent)
    try:
        if module:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    return 0


def main(given: Sequence[str]) -> int:
    """Run the program; return the exit status."""
    options = arguments(given)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _programs.prepare(folder, options.rates)
        status = 0
        try:
            status = run(options.program, options.arguments, module=options.module)
        finally:
            _programs.write_races(folder)
            if found := _programs.races_of_all(folder):
                sys.stderr.write(f"races on the simulated device:\n{found}")
                status = status or RACED
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
