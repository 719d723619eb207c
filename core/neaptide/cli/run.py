"""`neaptide run`: train the model of a configuration."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import attrs
from cyclopts import Parameter

from neaptide.checkpoint.recovery import old_of
from neaptide.errors import ConfigError, WrongCheckpointError, suggest
from neaptide.hooks.enabling import configured
from neaptide.io.logging import json_lines

from .loading import LOG, advice, loaded
from .output import AsJson, Offers, Preset, Sets, print_json, print_table, print_text

if TYPE_CHECKING:
    from neaptide.config import RunConfig


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
    log: Annotated[
        Literal["console", "json"] | None,
        Parameter(help="`json`: write each event to stderr as a line of JSON; overrides run.log."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Train the model of a configuration, through all its phases.

    Files are TOML, YAML or JSON; a later file overrides the settings of an earlier file.

        neaptide run my.toml                              # into runs/my
        neaptide run base.toml mine.yaml --set optimizer.lr=3e-4
        neaptide run my.toml --resume auto                # continue after a stop
        neaptide run runs/my/config.toml --set run.dir=runs/again
    """
    layered = loaded(files, preset, set_)
    config, ordered = configured(layered.config)
    for line in advice(config, ordered):
        LOG.warning("%s", line)
    origins = dict(layered.origins)
    if config.run.dir is None:
        name = (files[0].stem.lstrip(".") or "run") if files else preset
        config = attrs.evolve(config, run=attrs.evolve(config.run, dir=f"runs/{name}"))
        origins["run.dir"] = "the first file's name" if files else "the preset's name"
    if log is not None:
        config = attrs.evolve(config, run=attrs.evolve(config.run, log=log))
        origins["run.log"] = "--log"
    _check_resume(resume, config, allow_changes=allow_changes)

    from .training import train  # noqa: PLC0415 - imports torch, so the checks come first

    # As with `python -m`, `my_module:factory` can be imported from the current directory.
    sys.path.insert(0, str(Path.cwd()))
    # Prints of the user's code must not mix with the JSON on stdout.
    with (
        redirect_stdout(sys.stderr) if json else nullcontext(),
        json_lines() if config.run.log == "json" else nullcontext(),
    ):
        summary, reports = train(
            config,
            origins,
            resume=resume,
            allow_changes=allow_changes,
            style="quiet" if quiet else config.run.progress,
        )
    if json:
        print_json({**summary, "run_dir": config.run.dir})
        return
    print_text("")
    print_table([*summary.rows(), ("run directory", str(config.run.dir))])
    for name, report in reports.items():
        print_text(f"\n{name}\n{report}")


def _check_resume(resume: str | None, config: RunConfig, *, allow_changes: bool) -> None:
    if resume is None:
        if allow_changes:
            msg = "--allow-changes is for resuming; give --resume auto or --resume CHECKPOINT too"
            raise ConfigError(msg)
        return
    # After a crash the checkpoint may exist only under its `.old-` name. `load` renames it back.
    places = (Path(resume), old_of(Path(resume)))
    # `os.path.exists`, because `Path.exists` raises if a name is too long or access is denied.
    if resume != "auto" and not any(os.path.exists(place) for place in places):  # noqa: PTH110 - see above
        msg = (
            f"there is no checkpoint {resume!r} to resume from{suggest(resume, ['auto'])}; "
            f"see neaptide ckpt list {config.run.dir}"
        )
        raise WrongCheckpointError(msg)
