"""`neaptide plan`: whether a configuration fits a machine."""

from __future__ import annotations

import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
from cyclopts import Parameter

from neaptide.cli.loading import LOG, advice, loaded
from neaptide.cli.output import (
    AsJson,
    Offers,
    Preset,
    Sets,
    print_json,
    print_note,
    print_text,
)
from neaptide.config import by_suffix, unstructure
from neaptide.errors import ConfigError, DoesNotFitError
from neaptide.hooks.enabling import configured
from neaptide_toolkit.files import write_new

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neaptide.config import RunConfig

    from .machine import PlannedMachine
    from .value import Plan


def _profiles() -> tuple[str, ...]:
    from neaptide_toolkit.machine import profiles  # noqa: PLC0415 - only the shell's suggestions

    return profiles.names()


def plan(
    *files: Path,
    preset: Preset = None,
    set_: Sets = None,
    model: Annotated[
        str | None, Parameter(help="The model, such as `hf:DIRECTORY`; replaces `model.name`.")
    ] = None,
    tokens: Annotated[
        str | None,
        Parameter(help="Tokens of a batch, LENGTHxROWS, such as 4096x8; replaces the data."),
    ] = None,
    device: Annotated[
        str | None,
        Parameter(
            help="GiB of the device's memory, `cpu`, or a profile such as `rtx4090`; several "
            "profiles with commas, or `all`."
        ),
        Offers(_profiles),
    ] = None,
    ram: Annotated[float | None, Parameter(help="GiB of RAM.")] = None,
    disk: Annotated[float | None, Parameter(help="GB of the disk that are free.")] = None,
    disk_rate: Annotated[
        float | None, Parameter(help="GB/s that the disk reads, and that it writes.")
    ] = None,
    nproc: Annotated[
        int | None, Parameter(help="Processes of the run, on all nodes together.")
    ] = None,
    nodes: Annotated[
        int | None, Parameter(help="Machines of the run; 1 if it is not given.")
    ] = None,
    link: Annotated[
        float | None,
        Parameter(
            help="GB/s (1e9 bytes) from one node to another, in one direction; with one node, from "
            "one process to another."
        ),
    ] = None,
    write: Annotated[
        Path | None, Parameter(help="Write the nearest configuration that fits to a new file.")
    ] = None,
    html: Annotated[Path | None, Parameter(help="Write a page with bars to this file.")] = None,
    json: AsJson = False,
) -> int:
    """Tell whether a configuration fits a machine, and how fast it can be there.

    Trains the model without computing values, in a process that stays small. Without `--device` and
    `--ram` the machine is this one. The exit code is 0 if the configuration fits, and 3 if not.
    If not, changes that plugins offer are tried.

        neaptide plan my.toml
        neaptide plan my.toml --device rtx4090 --ram 64
        neaptide plan my.toml --device 16 --write fits.toml
        neaptide plan my.toml --device all --ram 64
        neaptide plan my.toml --device h200 --nproc 16 --nodes 2 --link 50
        neaptide plan --model hf:models/Llama-3.2-1B --tokens 4096x8 --device rtx4090
    """
    if write is not None and tokens is not None:
        msg = "a configuration to run needs data: write it from a file with [data] @ --write"
        raise ConfigError(msg)
    from .tokens import settings  # noqa: PLC0415 - the help of all verbs needs it not

    given = [*settings(model, tokens), *(set_ or ())]
    config, ordered = configured(loaded(files, preset, given).config)
    for line in advice(config, ordered):
        LOG.warning("%s", line)

    from . import cards  # noqa: PLC0415 - it imports torch
    from .machine import target  # noqa: PLC0415 - likewise
    from .processes import given_processes  # noqa: PLC0415 - likewise

    processes = given_processes(nproc, nodes, link, config, ordered)

    def machine(name: str | None) -> PlannedMachine:
        found = target(name, ram, config.train.device, disk=disk, disk_rate=disk_rate)
        return attrs.evolve(found, processes=processes)

    sys.path.insert(0, str(Path.cwd()))  # as `neaptide run` does
    if names := cards.several(device):
        if write or html:
            msg = "a page or a configuration is of one device; name one @ --device"
            raise ConfigError(msg)
        return _plan_several(config, names, [machine(name) for name in names], json=json)
    config, made = _plan_one(config, machine(device), json=json)
    if html is not None:
        from .page import plan_page  # noqa: PLC0415 - only the page needs it

        write_new(html, plan_page(made))
        print_note(f"page: {html}")
    if write is not None:
        _write(write, [config] if made.fits else [one.config for one in made.changes[:1]])
    return 0 if made.fits else DoesNotFitError.exit_code


def _plan_one(config: RunConfig, machine: PlannedMachine, *, json: bool) -> tuple[RunConfig, Plan]:
    """Print the plan of a machine and, if it does not fit, changes with which it does.

    Return the configuration with what the plan chose, and the plan.
    """
    from . import search, value  # noqa: PLC0415 - they import torch
    from .auto.choosing import chosen  # noqa: PLC0415 - likewise

    start = time.monotonic()
    with redirect_stdout(sys.stderr):  # the user's code may print
        config, made = chosen(config, machine, _told_choice)
    if not json:
        print_text(str(made))
    if not made.fits:
        with redirect_stdout(sys.stderr):
            seconds = search.seconds_left(start)
            made = search.with_changes(made, config, machine, seconds, _told)
        if not json:
            print_text(f"\n{value.changes(made)}")
    if json:
        print_json(value.as_json(made))
    return config, made


def _plan_several(
    config: RunConfig, names: Sequence[str], machines: Sequence[PlannedMachine], *, json: bool
) -> int:
    """Print a table of the plans of several cards."""
    from . import cards, planning, value  # noqa: PLC0415 - they import torch
    from .auto.choosing import asks  # noqa: PLC0415 - likewise

    if asks(config):
        msg = "a plan chooses settings that are 'auto' for one device; name one @ --device"
        raise ConfigError(msg)
    with redirect_stdout(sys.stderr):  # the user's code may print
        every = planning.plans(config, machines)
    if json:
        print_json([value.as_json(one) for one in every])
    else:
        print_text(cards.beside(names, machines, every))
    return 0 if any(one.fits for one in every) else DoesNotFitError.exit_code


def _told_choice(number: int, settings: Mapping[str, Any]) -> None:
    if sys.stderr.isatty():  # as below
        from .value import written  # noqa: PLC0415 - it imports torch

        print_note(f"choice {number}: {', '.join(written(settings))}")


def _told(number: int, settings: dict[str, Any]) -> None:
    if sys.stderr.isatty():  # who waits sees what is tried
        from .search import MOST  # noqa: PLC0415 - it imports torch
        from .value import written  # noqa: PLC0415 - likewise

        print_note(f"change {number} of at most {MOST}: {', '.join(written(settings))}")


def _write(path: Path, best: Sequence[RunConfig]) -> None:
    if not best:
        print_note(f"note: {path} is not written, because no configuration that fits was found")
        return
    write_new(path, by_suffix(path).dumps(unstructure(best[0])))
    print_note(f"written to {path}")
