"""Reads the place of a process that SLURM has started, and where its first process can be found."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

STARTED = "SLURM_STEP_NUM_TASKS"
"""Only `srun` sets this variable; a batch script that starts one process itself does not see it."""
_COUNTS = "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"
_LISTS = "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"
_FIRST_PORT, _PORTS = 20_000, 10_000


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what torchrun would set, for a process that `srun` has started beside others.

    The result is empty for a process that is alone or that torchrun has started. It leaves out
    MASTER_ADDR and MASTER_PORT if they are set. The port is a number from 20000 to 29999 that
    depends on job and step.
    """
    size, rank = environ.get(STARTED, "1"), environ.get("SLURM_PROCID")
    if {"RANK", "WORLD_SIZE"} & environ.keys() or size == "1" or rank is None:
        return {}
    nodes = next((environ[name] for name in _LISTS if environ.get(name)), "")
    counts = next((environ[name] for name in _COUNTS if environ.get(name)), "")
    job, step = (environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    number = 101 * int(job if job.isdecimal() else 0) + int(step if step.isdecimal() else 0)
    found = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": environ.get("SLURM_LOCALID", "0"),
        "LOCAL_WORLD_SIZE": tasks_of(counts, environ.get("SLURM_NODEID", "")),
        "MASTER_ADDR": first_of(nodes),
        "MASTER_PORT": str(_FIRST_PORT + number % _PORTS),
    }
    return {name: value for name, value in found.items() if value and name not in environ}


def tasks_of(counts: str, node: str) -> str:
    """Return how many tasks a node has, from a list in SLURM's notation, such as `4(x2),3`.

    `node` is the number of the node, from 0. The result is empty if the list does not tell.
    """
    found: list[str] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?(?:,|$)", counts):
        found += [count] * int(times or 1)
    return found[int(node)] if node.isdecimal() and int(node) < len(found) else ""


def first_of(nodes: str) -> str:
    """Return the first host of a list in SLURM's notation, such as `gpu[03-05,9],login`."""
    return re.split(r",(?![^\[]*\])", re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", nodes))[0]
