"""`neaptide run`: train what a configuration names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
from cyclopts import Parameter

from .configs import effective
from .output import AsJson, Preset, Sets, print_json, print_text, size, table

if TYPE_CHECKING:
    from neaptide.config import RunConfig


def run(
    *files: Path,
    preset: Preset = None,
    set_: Sets = None,
    resume: Annotated[
        str | None, Parameter(help="`auto`: from the newest checkpoint of the run; or a path.")
    ] = None,
    allow_changes: Annotated[
        bool, Parameter(negative="", help="Resume under a config that differs.")
    ] = False,
    quiet: Annotated[bool, Parameter(negative="", help="Print the summary only.")] = False,
    json: AsJson = False,
) -> None:
    """Train what the configuration names, through all its phases.

    Several files are combined in order, later ones over earlier ones.
    """
    config, _ = effective(files, preset, set_)
    config = _with_directory(config, files, preset)
    # So that `my_module:factory` beside the config is found, as python -m finds it.
    sys.path.insert(0, str(Path.cwd()))

    from neaptide import assembly  # noqa: PLC0415 - the first import of torch, after all checks
    from neaptide.progress import progress  # noqa: PLC0415
    from neaptide.trainer import HybridTrainer  # noqa: PLC0415

    style = "quiet" if quiet else config.run.progress
    with HybridTrainer.from_config(config) as trainer:
        data = assembly.build_data(config, trainer.hooks)
        with progress(config, style=style, stream=sys.stderr if json else sys.stdout) as observe:
            summary = trainer.fit(data, resume=resume, allow_changes=allow_changes, observe=observe)
        reports = {name: trainer.report(name) for name in trainer.hooks.plugins}
    if json:
        print_json({**summary, "run_dir": config.run.dir})
        return
    print_text("\n" + _summary(summary, config))
    for name, report in reports.items():
        if report:
            print_text(f"\n{name}\n{report}")


def _with_directory(config: RunConfig, files: tuple[Path, ...], preset: str | None) -> RunConfig:
    if config.run.dir is not None:
        return config
    name = files[0].stem if files else preset
    return attrs.evolve(config, run=attrs.evolve(config.run, dir=f"runs/{name}"))


def _summary(summary: dict[str, Any], config: RunConfig) -> str:
    rows = [
        ("validation loss", _number(summary["val_loss"])),
        ("training loss", f"{_number(summary['final_loss'])} (last update)"),
        ("updates", str(summary["steps"])),
        (
            "backward skipped",
            f"{summary['backward_skipped']:.1%} ({summary['jumps']} accepted jumps)",
        ),
        ("speedup", "not measured"),
        ("time", f"{summary['seconds']:.1f} s"),
    ]
    for phase, peak in summary["peak_bytes"].items():
        device = f"device {size(peak['device_bytes'])}, " if peak["device_bytes"] else ""
        rows.append((f"peak memory, {phase}", f"{device}host {size(peak['host_bytes'])}"))
    rows.append(("run directory", str(config.run.dir)))
    return table(rows)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"
