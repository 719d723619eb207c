"""`neaptide sample`: let the trained language model of a run continue a text."""

from __future__ import annotations

import math
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from neaptide.cli.output import AsJson, print_json, print_text
from neaptide.errors import ConfigError


def sample(
    run: Path,
    prompt: str,
    /,
    *,
    tokens: Annotated[int, Parameter(help="Largest number of new tokens.")] = 64,
    temperature: Annotated[
        float, Parameter(help="0 takes the most probable token; more is more varied.")
    ] = 0.0,
    seed: Annotated[int, Parameter(help="Seed of the random choices.")] = 0,
    raw: Annotated[
        bool, Parameter(negative="", help="Continue the prompt itself, without a chat template.")
    ] = False,
    step: Annotated[
        int | None, Parameter(help="Step of the checkpoint; by default the newest one.")
    ] = None,
    device: Annotated[str, Parameter(help="As `train.device`.")] = "auto",
    json: AsJson = False,
) -> None:
    """Let the trained language model of a run continue a prompt.

    RUN is a run directory or a checkpoint. Builds the model that the configuration names, so it
    runs the configuration's code, as `neaptide run` does.

        neaptide sample runs/quickstart "def main("
        neaptide sample runs/my "What is a neap tide?" --temperature 0.7
    """
    for name, value, least in (("tokens", tokens, 1), ("seed", seed, 0)):
        if not least <= value < 1 << 63:
            msg = f"give a whole number from {least} (got {value}) @ --{name}"
            raise ConfigError(msg)
    if not (math.isfinite(temperature) and temperature >= 0):
        msg = f"give a number from 0 (got {temperature:g}) @ --temperature"
        raise ConfigError(msg)
    if not prompt.isprintable() and any("\ud800" <= one <= "\udfff" for one in prompt):
        msg = "the prompt is not valid UTF-8"
        raise ConfigError(msg)
    from .sampling import sample_run  # noqa: PLC0415 - it imports torch

    sys.path.insert(0, str(Path.cwd()))  # as `neaptide run` does
    with redirect_stdout(sys.stderr):  # the user's code may print
        done = sample_run(
            run,
            prompt,
            tokens=tokens,
            temperature=temperature,
            seed=seed,
            raw=raw,
            step=step,
            device=device,
        )
    if json:
        print_json(done)
    else:
        encoding = sys.stdout.encoding or "utf-8"
        # What the terminal cannot show is escaped.
        print_text(str(done["text"]).encode(encoding, "backslashreplace").decode(encoding))
