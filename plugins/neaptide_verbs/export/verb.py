"""`neaptide export`: the trained model of a run as safetensors files."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from neaptide.cli.output import AsJson, print_json, print_text
from neaptide.errors import ConfigError
from neaptide.io.units import size


def export(
    run: Path,
    /,
    *,
    to: Annotated[
        Path | None,
        Parameter(help="A new or empty directory; by default RUN-step-N in the current directory."),
    ] = None,
    dtype: Annotated[
        Literal["bf16", "fp16", "fp32"] | None,
        Parameter(help="Dtype of the weights; by default as they were trained."),
    ] = None,
    average: Annotated[
        bool, Parameter(negative="", help="Export the average of the plugin `ema`.")
    ] = False,
    merge: Annotated[
        bool, Parameter(negative="", help="Add the adapters of `lora` to the weights.")
    ] = False,
    step: Annotated[
        int | None, Parameter(help="Step of the checkpoint; by default the newest one.")
    ] = None,
    max_shard: Annotated[float, Parameter(help="Largest GB of one file.")] = 5.0,
    json: AsJson = False,
) -> None:
    """Write the trained model of a run as safetensors files.

    RUN is a run directory or a checkpoint. A model `hf:...` becomes a directory that transformers
    loads, with its configuration and tokenizer; adapters become a directory of peft. Weights are
    copied one at a time, so the model need not fit in RAM. Only the target directory is written.

        neaptide export runs/my --to my-model
        neaptide export runs/my --to my-model --dtype bf16 --average
    """
    if not 0 < max_shard < 1e9:  # noqa: PLR2004 - 1e9 GB
        msg = f"give a number of GB above 0 (got {max_shard:g}) @ --max-shard"
        raise ConfigError(msg)
    from .exporting import export_run  # noqa: PLC0415 - it imports torch

    with redirect_stdout(sys.stderr):  # transformers may print
        done = export_run(
            run,
            to,
            dtype=dtype,
            average=average,
            merge=merge,
            step=step,
            shard_bytes=int(max_shard * 1e9) or 1,
        )
    if json:
        print_json(done)
    else:
        files = f"{len(done['weights'])} file{'s' * (len(done['weights']) != 1)}"
        print_text(f"{done['directory']}: step {done['step']}, {files}, {size(done['bytes'])}")
