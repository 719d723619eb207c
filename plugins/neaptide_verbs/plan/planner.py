"""What the core finds of plans: `neaptide.plan`, and what `neaptide run` asks before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide.api import rng
from neaptide.config.schema import ModelSection
from neaptide.hooks.enabling import configured

from .before_run import checked
from .given import given_model, planned_with
from .out_of_memory import way_out

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from neaptide.config import RunConfig
    from neaptide_toolkit.machine.profiles import Machine

    from .value import Plan

__all__ = ["checked", "plan", "way_out"]


def plan(
    model_factory: Callable[[], Any] | None,
    config: RunConfig | Mapping[str, Any] | str | Path,
    machine: str | float | Machine | None = None,
    *,
    ram: float | None = None,
    nproc: int | None = None,
    nodes: int | None = None,
    link: float | None = None,
) -> Plan:
    """Return the plan of a configuration: whether it fits a machine, and how fast it can be there.

    The model, the data and the optimizer are built as for a run, and trained without computing
    values, in this process. The random state stays as it is. If the configuration does not fit,
    changes that plugins offer are planned, too. This is `neaptide.plan`.

    Args:
        model_factory: returns the model, `(model, loss_fn)` or a `Task`. It is called once for each
            configuration that is planned. A model that exists already stays as it is. None: the
            model that the config names.
        config: a TOML, YAML or JSON file, a mapping or a RunConfig. It names the data.
        machine: a profile or its name, such as `"rtx4090"`; `"cpu"`; a number of GiB of the
            device's memory; None: this machine's device.
        ram: GiB of RAM; None: this machine's.
        nproc: processes of the run, on all nodes together; None: one. None is started.
        nodes: machines of the run; None: one.
        link: GB/s from one node to another or, with one node, from one process to another.

    Returns:
        A value with `fits`, `peak_bytes` (bytes by tier: `device`, `RAM`), `seconds_per_step` and
        `tokens_per_second` (None without rates), `bound_by`, `processes` and `changes`. `print`
        shows it.

    Raises:
        ConfigError: the configuration or the machine is wrong.
        NeaptideError: the configuration cannot run, or its model needs values.
    """
    from . import search  # noqa: PLC0415 - a run that plans nothing does not need it
    from .machine import target  # noqa: PLC0415 - likewise
    from .processes import given_processes  # noqa: PLC0415 - likewise

    full, ordered = configured(config)
    processes = given_processes(nproc, nodes, link, full, ordered)
    with rng.preserved(), planned_with(model_factory):
        if model_factory is not None:
            name = f"{given_model.__module__}:{given_model.__name__}"
            full = attrs.evolve(full, model=ModelSection(name=name))
        found = target(machine, ram, full.train.device)
        return search.searched(full, attrs.evolve(found, processes=processes))
