"""The place of a process that SLURM has started."""

from __future__ import annotations

import os

import pytest

from neaptide_toolkit.ranks import launching
from neaptide_toolkit.ranks.slurm import first_of, tasks_of, variables

STEP = {
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "gpu[03-05,9],login",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
    "SLURM_JOB_ID": "1234567",
    "SLURM_STEP_ID": "1",
}


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node7", "node7"),
        ("a,b", "a"),
        ("gpu[03-05,9],login", "gpu03"),
        ("login,gpu[03-05]", "login"),
        ("rack[1-2]-node[10,12-14]", "rack1-node10"),
        ("", ""),
    ],
)
def test_the_first_host_of_a_list(nodes: str, first: str) -> None:
    assert first == first_of(nodes)


@pytest.mark.parametrize(
    ("counts", "node", "count"),
    [
        ("4", "0", "4"),
        ("2(x3),1", "2", "2"),
        ("2(x3),1", "3", "1"),
        ("2(x3),1", "4", ""),
        ("12,3(x2),12", "2", "3"),
        ("", "0", ""),
        ("4", "", ""),
    ],
)
def test_the_tasks_of_a_node(counts: str, node: str, count: str) -> None:
    assert count == tasks_of(counts, node)


def test_a_step_of_srun_has_the_variables_of_torchrun() -> None:
    assert variables(STEP) == {
        "RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "gpu03",
        "MASTER_PORT": str(20_000 + (101 * 1_234_567 + 1) % 10_000),
    }


@pytest.mark.parametrize(
    "changed",
    [
        {"SLURM_STEP_NUM_TASKS": "1"},
        {"RANK": "0", "WORLD_SIZE": "2"},  # torchrun inside a step
    ],
)
def test_other_processes_keep_their_environment(changed: dict[str, str]) -> None:
    assert {} == variables(STEP | changed)


def test_a_batch_script_that_starts_one_process_has_one() -> None:
    batch = {name: value for name, value in STEP.items() if not name.startswith("SLURM_STEP_")}
    assert {} == variables(batch | {"SLURM_NTASKS": "4"})


def test_what_the_user_has_set_stays() -> None:
    found = variables(STEP | {"MASTER_PORT": "4711"})
    assert "MASTER_PORT" not in found
    assert "gpu03" == found["MASTER_ADDR"]


def test_a_process_of_another_command_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {**STEP, "HOME": "/root"})
    assert (2, 4) == launching.place()
    assert not {"RANK", "WORLD_SIZE"} & launching.alone().keys()
    assert {} == variables(launching.alone())
