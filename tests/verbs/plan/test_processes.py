"""`neaptide plan --nproc`: several processes, of which none is started."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from plans import KINDS, neaptide

import neaptide as package
from neaptide.errors import ConfigError, DoesNotFitError
from neaptide.hooks.enabling import configured
from neaptide_toolkit.dry_run.processes.places import Processes
from neaptide_verbs.plan.machine import target
from neaptide_verbs.plan.page import plan_page
from neaptide_verbs.plan.planning import plan, plan_if_fits
from neaptide_verbs.plan.processes import given_processes
from neaptide_verbs.plan.value import as_json

if TYPE_CHECKING:
    from pathlib import Path

CONFIG: dict[str, Any] = {
    "version": 1,
    "model": {"name": f"{KINDS}:deep", "options": {"layers": 2, "width": 64}},
    "data": {"name": f"{KINDS}:sequences", "options": {"width": 64}},
    "train": {"batch_size": 8, "device": "cpu"},
    "plugins": {"sharding": {"stage": 3}},
}


def with_stage(stage: Any) -> dict[str, Any]:
    return {**CONFIG, "plugins": {"sharding": {"stage": stage}}}


def of_one(made: Any) -> dict[str, int]:
    """Return what the planned process holds of the device."""
    kinds = made.tiers["device"].kinds
    return {name: kinds.get(name, 0) for name in ("weights", "optimizer state", "activations")}


def test_one_machine_tells_what_each_of_many_cards_holds_and_sends(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(CONFIG))
    words = ("--device", "h200", "--ram", "64", "--nproc", "4", "--nodes", "2", "--link", "25")
    done = neaptide(tmp_path, "plan", "mine.json", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\ncomputed for one of 4 processes on 2 nodes; none was started\n" in done.stdout
    assert "\nreduce-scatter  " in done.stdout
    assert "\nlink of 25 GB/s: busy for " in done.stdout
    assert "\nbuffers of collectives  " in done.stdout


def test_json_has_what_a_process_sends() -> None:
    made = package.plan(None, CONFIG, "h200", ram=64, nproc=4, nodes=2, link=25.0)
    found = json.loads(json.dumps(as_json(made)))
    processes = found["processes"]
    assert (4, 2, 25e9) == (processes["count"], processes["nodes"], processes["link"])
    assert processes["seconds"] >= sum(processes["sent"].values()) / 25e9
    assert found["busy"]["link"] == pytest.approx(processes["seconds"])


def test_four_processes_hold_a_quarter_of_what_is_divided() -> None:
    alone, four = (
        package.plan(None, CONFIG, "h200", ram=64, **more) for more in ({}, {"nproc": 4})
    )
    before, after = of_one(alone), of_one(four)
    for kind in ("weights", "optimizer state"):
        assert after[kind] == pytest.approx(before[kind] / 4, rel=0.01)
    assert after["activations"] == pytest.approx(before["activations"] / 4, rel=0.05)
    assert alone.processes is None
    assert four.processes.link == pytest.approx(450e9)  # of the profile


@pytest.mark.parametrize("offload", ["cpu", "pinned"])
def test_rows_in_ram_are_planned_there(offload: str) -> None:
    config = {**CONFIG, "plugins": {"sharding": {"stage": 3, "offload": offload}}}
    there, here = (package.plan(None, one, "h200", ram=64, nproc=4) for one in (CONFIG, config))
    before, after = there.processes.holds, here.processes.holds
    assert {0} == {after.get(kind, 0) // 1024 for kind in ("weights", "optimizer state")}
    assert after["gathered weights"] == before["gathered weights"]
    ram = here.tiers["RAM"].kinds
    for kind in ("weights", "gradients", "optimizer state"):
        assert ram[kind] == pytest.approx(before[kind], rel=0.01)
    assert here.busy["to device"] > 0
    assert here.busy["to host"] > 0


def test_weights_cast_before_they_are_gathered_are_half_as_many_bytes() -> None:
    config = {**CONFIG, "plugins": {"sharding": {"stage": 3, "param_dtype": "bfloat16"}}}
    wide, cast = (package.plan(None, one, "h200", ram=64, nproc=4) for one in (CONFIG, config))
    before, after = wide.processes.holds, cast.processes.holds
    for kind in ("weights", "optimizer state"):
        assert after[kind] == before[kind]
    assert after["gathered weights"] == pytest.approx(before["gathered weights"] / 2, rel=0.02)
    assert after["activations"] < 0.75 * before["activations"]
    sent = [made.processes.sent["all-gather"] for made in (wide, cast)]
    assert sent[1] == pytest.approx(sent[0] / 2, rel=0.01)  # checks are sent, too
    assert cast.processes.sent["reduce-scatter"] == wide.processes.sent["reduce-scatter"]


def test_ram_is_that_of_all_processes_of_a_node() -> None:
    whole = {
        nodes: package.plan(None, CONFIG, "cpu", ram=64, nproc=4, nodes=nodes, link=1.0)
        for nodes in (1, 2)
    }
    others = {nodes: made.tiers["RAM"].kinds["other processes"] for nodes, made in whole.items()}
    for nodes, made in whole.items():
        own = made.peak_bytes["RAM"] - others[nodes]
        assert others[nodes] == own * (4 // nodes - 1)


def test_a_batch_that_is_not_divisible_is_planned_for_the_process_with_most_of_it() -> None:
    """Of 8 samples, 3 processes compute 2, 3 and 3."""
    plans = {nproc: package.plan(None, CONFIG, "h200", ram=64, nproc=nproc) for nproc in (3, 4)}
    held = {nproc: made.processes.holds["activations"] for nproc, made in plans.items()}
    assert held[3] == pytest.approx(held[4] * 3 / 2, rel=0.05)


def test_without_a_link_the_bytes_are_told_and_the_time_is_not() -> None:
    made = package.plan(None, CONFIG, "cpu", ram=64, nproc=2)
    assert made.processes.seconds is None
    assert "link: unknown, so no time counts for it; give its GB/s @ --link" in str(made)
    known = package.plan(None, CONFIG, "cpu", ram=64, nproc=2, link=2.0)
    sent = sum(known.processes.sent.values())
    assert known.processes.seconds == pytest.approx(sent / 2e9)


def test_a_slow_link_binds_and_a_fast_one_does_not() -> None:
    bound = {
        link: package.plan(None, CONFIG, "h200", ram=64, nproc=4, link=link).bound_by
        for link in (0.1, 450.0)
    }
    assert "link" == bound[0.1]
    assert "link" != bound[450.0]


def test_a_page_and_a_table_of_cards_tell_of_processes(tmp_path: Path) -> None:
    page = plan_page(package.plan(None, CONFIG, "h200", ram=64, nproc=2))
    assert "computed for one of 2 processes on one node" in page
    (tmp_path / "mine.json").write_text(json.dumps(CONFIG))
    done = neaptide(tmp_path, "plan", "mine.json", "--device", "a100,h200", "--nproc", "2")
    assert "\nin a step, one of 2 processes sends: all-gather " in done.stdout


@pytest.mark.parametrize(
    ("nproc", "nodes", "link", "told"),
    [
        (0, None, None, "there is at least 1 (got 0 @ --nproc)"),
        (4, -1, None, "there is at least 1 (got -1 @ --nodes)"),
        (4, None, -1.0, "a link has more than 0 GB/s (got -1 @ --link)"),
        (4, None, float("nan"), "a link has more than 0 GB/s (got nan @ --link)"),
        (4, 3, 1.0, "each node has as many processes: 4 are not divisible by 3 @ --nodes"),
        (4, 2, None, "nobody knows the link between 2 nodes; give its GB/s as --link 25 @ --nodes"),
        (None, 2, 1.0, "only several processes have a link; say how many by --nproc @ --nodes"),
        (1, None, 1.0, "only several processes have a link; say how many by --nproc @ --link"),
        (9, None, None, "train.batch_size = 8 is divided among the processes"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    nproc: int | None, nodes: int | None, link: float | None, told: str
) -> None:
    config, ordered = configured(CONFIG)
    with pytest.raises(ConfigError) as raised:
        given_processes(nproc, nodes, link, config, ordered)
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_configuration_without_sharding_is_told_what_to_write() -> None:
    config, ordered = configured({**CONFIG, "plugins": {}})
    with pytest.raises(ConfigError, match=r"add \[plugins.sharding\]"):
        given_processes(2, None, None, config, ordered)


def test_what_several_processes_refuse_a_plan_refuses() -> None:
    config = {**with_stage(1), "optimizer": {"name": "adafactor"}}
    with pytest.raises(ConfigError, match="Adafactor may update a weight as a whole"):
        package.plan(None, config, "h200", ram=64, nproc=2)


def test_a_change_is_given_up_by_what_one_process_holds() -> None:
    config, _ = configured(CONFIG)
    four = Processes(count=4)
    needs = plan(config, attrs.evolve(target("a100", 64), processes=four)).peak_bytes["device"]
    enough, less = (
        attrs.evolve(target((needs + more) / 2**30, 64), processes=four)
        for more in (2**20, -(2**20))
    )
    assert 4 == plan_if_fits(config, enough).processes.count
    with pytest.raises(DoesNotFitError, match="device"):
        plan_if_fits(config, less)
    with pytest.raises(DoesNotFitError, match="RAM"):
        plan_if_fits(config, attrs.evolve(target("cpu", 0.25), processes=Processes(count=8)))
