"""The training of `neaptide run`; the command line's only module that imports torch."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from neaptide.api.steps import NOTES
from neaptide.errors import described, is_out_of_memory
from neaptide.io.logging import CONSOLE
from neaptide.plugin import sole
from neaptide.run import assembly
from neaptide.run.displays import display_of
from neaptide.run.fit import require_no_run
from neaptide.run.rundir import checkpoint_root
from neaptide.run.trainer import HybridTrainer

from .output import print_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neaptide.config import RunConfig
    from neaptide.io.summary import Summary

PLANNER_GROUP = "neaptide.planners"
"""The group of the entry point that plans: a module with `plan`, `checked` and `way_out`."""


def train(
    config: RunConfig,
    origins: Mapping[str, str],
    *,
    resume: str | None,
    allow_changes: bool,
    style: str,
) -> tuple[Summary, dict[str, str]]:
    """Train the model of `config`; return the summary, and the reports of plugins by plugin name.

    The display has the given `style` and writes to the present `sys.stdout`. `origins` maps the
    dotted path of each setting to its origin. The run directory stores `origins`.
    """
    root = checkpoint_root(config.run)
    if resume is None and root is not None:
        require_no_run(root)  # before a model is built
    planner = sole(PLANNER_GROUP)
    make = partial(HybridTrainer.from_config, origins=origins)
    try:
        with planner.checked(config, make) as trainer:
            data = assembly.build_data(config, trainer.hooks)
            for note in trainer.run.stash.get(NOTES) or () if style != "quiet" else ():
                print_text(note)
            with display_of(trainer.config, style, trainer.run.device, sys.stdout) as display:
                summary = trainer.fit(
                    data, resume=resume, allow_changes=allow_changes, observe=display
                )
            return summary, _reports(trainer)
    except Exception as error:
        if is_out_of_memory(error):
            error.way_out = planner.way_out(config, error)  # type: ignore[attr-defined]
        raise


def _reports(trainer: HybridTrainer) -> dict[str, str]:
    reports: dict[str, str] = {}
    for name in trainer.hooks.plugins:
        try:
            report = trainer.report(name)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - the run is saved; only this report is lost
            CONSOLE.warning("plugin %r cannot report: %s", name, described(error))
            continue
        if report:
            reports[name] = report
    return reports
