"""`neaptide compare`: the gain from prediction, measured against a tuned baseline."""

from __future__ import annotations

import json as json_module
import os
import re
import shlex
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from neaptide.cli.loading import loaded
from neaptide.cli.output import AsJson, Preset, Sets, print_json, print_note, print_text
from neaptide.errors import ConfigError, RunDirectoryError
from neaptide.hooks.enabling import configured
from neaptide.io.folder import replace_file
from neaptide.io.jsonable import jsonable
from neaptide.io.units import duration
from neaptide.run.signals import stop_on_signals
from neaptide.text import visible
from neaptide_toolkit.machine import facts as machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .runs import Comparison, ComparisonSettings
    from .sides import Side
    from .trials import Result, TrainingTrial


def compare(
    *files: Path,
    preset: Preset = None,
    set_: Sets = None,
    seeds: Annotated[
        str, Parameter(help="Seeds of the reported runs, comma-separated.")
    ] = "10,11,12",
    tuning_seeds: Annotated[
        str | None,
        Parameter(
            help="Seeds on which both sides are tuned. Default: three seeds, or one where three "
            "cost twice as many updates."
        ),
    ] = None,
    baseline: Annotated[
        Literal["tuned", "as-is"],
        Parameter(help="`as-is`: sweep nothing; the baseline then does not count as tuned."),
    ] = "tuned",
    against: Annotated[
        Path | None,
        Parameter(help="File of the baseline; by default CONFIG without its predictor."),
    ] = None,
    out: Annotated[
        Path | None,
        Parameter(help="Directory of trials and findings; by default runs/NAMES-compare."),
    ] = None,
    jobs: Annotated[
        int, Parameter(help="Number of runs at once; 0: one for each core, or one on a GPU.")
    ] = 0,
    dry_run: Annotated[
        bool, Parameter(negative="", help="Only tell how many trials, and about how long.")
    ] = False,
    quiet: Annotated[bool, Parameter(negative="", help="Print the findings only.")] = False,
    json: AsJson = False,
) -> None:
    """Train with and without prediction on the same data and seeds, and report the speedup.

    First the learning rate of every side is tuned. For the baseline, initialisation, warmup and
    decay are tuned, too. Then every side is trained with every seed for several numbers of updates.
    Each number of updates has its own schedule. The result is a multiplier. For example, 1.1 means
    that the baseline needs 1.1 times the backward passes (or the time) to reach the same loss.
    After an interruption the same command continues. Runs with equal settings are trained once.

        neaptide compare my.toml                          # the effect of the jumps alone
        neaptide compare muon.toml --against adamw.toml   # all differences, and each part alone
        neaptide compare my.toml --dry-run                # how many trials, and how long
        neaptide compare my.toml --seeds 10 --baseline as-is
    """
    from .ahead.dry_run import dry_run as plan_of  # noqa: PLC0415 - only this verb needs it
    from .ahead.dry_run import told  # noqa: PLC0415 - likewise
    from .findings import findings  # noqa: PLC0415 - likewise
    from .runs import ComparisonSettings  # noqa: PLC0415 - likewise
    from .shown.page import comparison_page  # noqa: PLC0415 - likewise
    from .shown.sentence import sentence  # noqa: PLC0415 - likewise
    from .shown.text import summary  # noqa: PLC0415 - likewise
    from .sides import sides_of  # noqa: PLC0415 - likewise

    if jobs < 0:
        msg = f"trials at once must be 0 or more (got {jobs}) @ --jobs"
        raise ConfigError(msg)
    name = _name_of(files, preset, against)
    sides = sides_of(
        configured(loaded(files, preset, set_).config)[0],
        configured(loaded((against,), None, None).config)[0] if against else None,
    )
    # Makes `my_module:factory` importable from the current folder, like python -m.
    sys.path.insert(0, str(Path.cwd()))
    reported = ComparisonSettings(seeds=_seeds(seeds, "--seeds"), sweeps=baseline == "tuned")
    settings = _tuned_on(tuning_seeds, sides, reported)
    root = out or Path("runs") / f"{name}-compare"
    many, threads = _shares(sides, jobs)
    if dry_run:
        plan = plan_of(sides, settings, root, many, threads)
        if json:
            print_json(plan)
        else:
            print_text(told(plan))
        return
    found = findings(_compared(sides, settings, _prepared(root), many, threads, quiet=quiet))
    found["sentence"] = sentence(found)
    found["command"] = shlex.join(["neaptide", *sys.argv[1:]])
    found |= {"machine": machine.facts(), "jobs": many, "threads": threads}
    document = json_module.dumps(jsonable(found), indent=1)
    _write(root / "compare.json", document)
    _write(root / "compare.html", comparison_page(found, f"Comparison of {name}"))
    if json:
        print_json(found)
        return
    shown = visible(str(root), kept="")
    print_text(f"\n{found['sentence']}\n\n{summary(found)}\n\nfindings: {shown}/compare.json")
    print_text(f"page: {shown}/compare.html")


def _compared(
    sides: Sequence[Side],
    settings: ComparisonSettings,
    root: Path,
    jobs: int,
    threads: int,
    *,
    quiet: bool,
) -> Comparison:
    from .pool import Pool  # noqa: PLC0415 - see above
    from .protocol import compare  # noqa: PLC0415 - likewise

    with ExitStack() as stack:
        stop = stack.enter_context(stop_on_signals())
        report = _silent if quiet else _TrialLines()
        pool = stack.enter_context(Pool(root, jobs, threads, report, stop))
        return compare(sides, settings, pool.train)


def _shares(sides: Sequence[Side], jobs: int) -> tuple[int, int]:
    """Return two numbers: trials that are trained in parallel, and threads per trial."""
    cores = max(1, int(machine.processor().usable or 1))
    on_cpu = all(_trains_on_cpu(side.values["train"]["device"]) for side in sides)
    many = jobs or (cores if on_cpu else 1)
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    most = int(wanted) if wanted.isdecimal() and int(wanted) else cores
    return many, max(1, min(most, cores // many))


def _name_of(files: Sequence[Path], preset: str | None, against: Path | None) -> str:
    """Return a name made of the names of all files.

    Different comparisons get different names, so that no findings are overwritten.
    """
    stems = [file.stem.lstrip(".") or "run" for file in files] or [preset or "run"]
    return "-".join(stems) + (f"-against-{against.stem.lstrip('.')}" if against else "")


class _TrialLines:
    """Prints a line on stderr for every trial when its result is ready."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._count = 0

    def __call__(self, trial: TrainingTrial, result: Result, kept: bool) -> None:  # noqa: FBT001 - a callback
        self._count += 1
        averaged = "" if result.averaged is None else f", averaged {result.averaged:.4f}"
        when = "kept" if kept else duration(result.seconds)
        since = duration(time.monotonic() - self._started)
        print_note(
            f"{self._count:4d}  {since}  {trial.label}: {result.loss:.4f}{averaged} ({when})"
        )


def _silent(trial: TrainingTrial, result: Result, kept: bool) -> None:  # noqa: FBT001 - a callback
    """Report nothing."""


def _trains_on_cpu(device: str) -> bool:
    if device != "auto":
        return device == "cpu"
    import torch  # noqa: PLC0415 - only `auto` needs it

    return not torch.accelerator.is_available()


def _seeds(text: str, where: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,18}", part) for part in parts):
        msg = (
            f"expected comma-separated seeds from 0 to 10**18 - 1, such as 10,11,12 "
            f"(got {text!r}) @ {where}"
        )
        raise ConfigError(msg)
    seeds = tuple(int(part) for part in parts)
    repeated = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if repeated:
        msg = f"each seed may be given only once (got {repeated[0]} twice) @ {where}"
        raise ConfigError(msg)
    return seeds


def _tuned_on(
    given: str | None, sides: Sequence[Side], settings: ComparisonSettings
) -> ComparisonSettings:
    """Return the settings with the seeds `given` for tuning, or with the default ones."""
    import attrs  # noqa: PLC0415 - only this verb needs it

    from .ahead.rehearsal import default_tuning_seeds  # noqa: PLC0415 - likewise

    if not settings.sweeps and given is None:
        return settings
    seeds = (
        default_tuning_seeds(sides, settings) if given is None else _seeds(given, "--tuning-seeds")
    )
    found = attrs.evolve(settings, tuning_seeds=seeds)
    _check_apart(found)
    return found


def _check_apart(settings: ComparisonSettings) -> None:
    both = sorted(set(settings.seeds) & set(settings.tuning_seeds))
    if settings.sweeps and both:
        msg = (
            f"seed {both[0]} is one on which both sides are tuned, and cannot be reported; give "
            f"others @ --seeds"
        )
        raise ConfigError(msg)


def _prepared(root: Path) -> Path:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"cannot make {root}: {error.strerror}; give another --out DIR"
        raise RunDirectoryError(msg) from error
    return root


def _write(path: Path, text: str) -> None:
    try:
        replace_file(path, text.encode())
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror}; give another --out DIR"
        raise RunDirectoryError(msg) from error
