"""`neaptide run`: train the model of a configuration."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import attrs
from cyclopts import Parameter

from neaptide.hooks.enabling import configured
from neaptide.io.logging import json_lines
from neaptide.plugin import sole

from .loading import LOG, advice, loaded
from .output import AsJson, Offers, Preset, Sets, print_json, print_table, print_text

LAUNCHER_GROUP = "neaptide.launchers"
"""The group of the entry point that trains in this process and others: a module."""


def run(
    *files: Path,
    preset: Preset = None,
    set_: Sets = None,
    resume: Annotated[
        str | None,
        Parameter(help="A checkpoint to continue from: `auto` (the run's newest) or a path."),
        Offers(lambda: ("auto",)),
    ] = None,
    allow_changes: Annotated[
        bool, Parameter(negative="", help="Resume even if the config differs.")
    ] = False,
    quiet: Annotated[bool, Parameter(negative="", help="Print the summary only.")] = False,
    nproc: Annotated[
        int | None, Parameter(help="Train in so many processes of this machine, as by torchrun.")
    ] = None,
    log: Annotated[
        Literal["console", "json"] | None,
        Parameter(help="`json`: write each event to stderr as a line of JSON; overrides run.log."),
    ] = None,
    json: AsJson = False,
) -> int | None:
    """Train the model of a configuration, through all its phases.

    Files are TOML, YAML or JSON; a later file overrides the settings of an earlier file.

        neaptide run my.toml                              # into runs/my
        neaptide run base.toml mine.yaml --set optimizer.lr=3e-4
        neaptide run my.toml --resume auto                # continue after a stop
        neaptide run my.toml --nproc 2                    # in two processes
        neaptide run runs/my/config.toml --set run.dir=runs/again
    """
    layered = loaded(files, preset, set_)
    config, ordered = configured(layered.config)
    launcher = sole(LAUNCHER_GROUP)
    for line in advice(config, ordered) if launcher.tells() else ():
        LOG.warning("%s", line)
    origins = dict(layered.origins)
    if config.run.dir is None:
        name = (files[0].stem.lstrip(".") or "run") if files else preset
        config = attrs.evolve(config, run=attrs.evolve(config.run, dir=f"runs/{name}"))
        origins["run.dir"] = "the first file's name" if files else "the preset's name"
    if log is not None:
        config = attrs.evolve(config, run=attrs.evolve(config.run, log=log))
        origins["run.log"] = "--log"
    launcher.check_resume(resume, config, allow_changes=allow_changes)
    if nproc is not None:
        given = {"preset": preset, "set": set_, "resume": resume, "log": log}
        switches = {"allow-changes": allow_changes, "quiet": quiet, "json": json}
        code: int = launcher.started(nproc, config, ordered, files, {**given, **switches})
        return code

    from .training import train  # noqa: PLC0415 - imports torch, so the checks come first

    # As with `python -m`, `my_module:factory` can be imported from the current directory.
    sys.path.insert(0, str(Path.cwd()))
    # Prints of the user's code must not mix with the JSON on stdout.
    with (
        redirect_stdout(sys.stderr) if json else nullcontext(),
        json_lines() if config.run.log == "json" else nullcontext(),
    ):
        trained = launcher.trained(
            partial(train, origins=origins),
            config,
            ordered,
            resume,
            allow_changes=allow_changes,
            style="quiet" if quiet else config.run.progress,
        )
    if trained is None:  # another process of the run tells
        return None
    summary, reports = trained
    if json:
        print_json({**summary, "run_dir": config.run.dir})
        return None
    print_text("")
    print_table([*summary.rows(), ("run directory", str(config.run.dir))])
    for name, report in reports.items():
        print_text(f"\n{name}\n{report}")
    return None
