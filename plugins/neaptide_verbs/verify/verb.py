"""`neaptide verify`: the user's own model, with plugins and without."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from neaptide.cli.loading import loaded
from neaptide.cli.output import AsJson, Offers, Preset, Sets, print_json, print_note, print_text
from neaptide.hooks.enabling import configured

PLAIN = "plain"


def verify(
    *files: Path,
    preset: Preset = None,
    set_: Sets = None,
    steps: Annotated[int, Parameter(help="Updates of each run.")] = 8,
    against: Annotated[
        str,
        Parameter(help="`plain`: the same without plugins; or a file with other plugins."),
        Offers(lambda: (PLAIN,)),
    ] = PLAIN,
    memory: Annotated[
        bool, Parameter(help="Measure peak memory, and compare it with the plan.")
    ] = True,
    blocks: Annotated[
        int | None,
        Parameter(help="Verify a slice: so many of the model's repeated blocks."),
    ] = None,
    report: Annotated[
        Path | None,
        Parameter(help="New directory for what an issue needs; it has no weights and no data."),
    ] = None,
    json: AsJson = False,
) -> int:
    """Train a few updates with the plugins and without, and name the plugin that differs.

    Losses, gradients, weights, buffers, optimizer and random state are compared to the bit, or
    within the tolerance that plugins declare. One run is resumed in its middle. The exit code is 0
    if all is right, and 1 if something differs.

        neaptide verify my.toml
        neaptide verify my.toml --steps 20 --report verify-report
        neaptide verify streamed.toml --against checkpointed.toml
    """
    full, _ = configured(loaded(files, preset, set_).config)
    other = None if against == PLAIN else configured(loaded((Path(against),), None, None).config)[0]
    if report is not None:
        from .report import refuse_existing  # noqa: PLC0415 - the help of all verbs needs it not

        refuse_existing(report)
    from neaptide_toolkit.verifying import verify as verified  # noqa: PLC0415 - it imports torch

    sys.path.insert(0, str(Path.cwd()))  # as `neaptide run` does
    with redirect_stdout(sys.stderr):  # the user's code may print
        found = verified(full, steps=steps, against=other, memory=memory, blocks=blocks)
    if json:
        print_json(found.as_json())
    else:
        print_text(str(found))
    if report is not None:
        from .report import write_report  # noqa: PLC0415 - as above

        write_report(report, found, full)
        print_note(f"report: {report}")
    return 0 if found.right else 1
