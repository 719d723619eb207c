"""`neaptide.plan` in Python."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import torch
from plans import KINDS, planned
from torch import nn

import neaptide
from neaptide.errors import ConfigError
from neaptide_toolkit.machine import profiles
from neaptide_toolkit.testing import kinds
from neaptide_verbs.plan.machine import target

if TYPE_CHECKING:
    from pathlib import Path

CONFIG: dict[str, Any] = {
    "data": {"name": f"{KINDS}:sequences", "options": {"width": 64}},
    "train": {"batch_size": 8},
}
DEEP = partial(kinds.deep, 2, 64)
NAMED = {**CONFIG, "model": {"name": f"{KINDS}:deep", "options": {"layers": 2, "width": 64}}}


def test_a_factory_is_planned_as_the_model_that_a_config_names() -> None:
    given = neaptide.plan(DEEP, CONFIG, "rtx4090", ram=64)
    named = neaptide.plan(None, NAMED, "rtx4090", ram=64)
    assert given.fits
    assert given.peak_bytes["device"] == named.peak_bytes["device"]
    assert given.tiers["device"].kinds == named.tiers["device"].kinds
    assert given.seconds_per_step == pytest.approx(named.seconds_per_step)
    assert given.bound_by == "compute"
    assert given.changes == ()


def test_it_is_the_plan_of_the_command_line(tmp_path: Path) -> None:
    done = planned(tmp_path, "--device", "rtx4090", "--ram", "64")
    found = neaptide.plan(None, tmp_path / "mine.toml", "rtx4090", ram=64)

    def of_device(text: str) -> str:
        return text.partition("device at")[2].partition("RAM at")[0]

    assert of_device(str(found)) == of_device(done.stdout)
    assert str(found).splitlines()[-1].startswith("fits, ")


def test_a_plan_is_frozen_and_its_repr_is_a_line() -> None:
    found = neaptide.plan(DEEP, CONFIG, "rtx4090")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        found.machine = "mine"
    assert "\n" not in repr(found)


def test_what_does_not_fit_has_changes() -> None:
    deep = partial(kinds.deep, 12, 256)
    config = {**CONFIG, "data": {"name": f"{KINDS}:sequences", "options": {"width": 256}}}
    needed = neaptide.plan(deep, config, "rtx4090", ram=64).peak_bytes["device"]
    found = neaptide.plan(deep, config, 0.95 * needed / 2**30, ram=64)
    assert not found.fits
    assert found.changes[0].plan.fits
    assert found.changes[0].numerics == "exact"
    assert f"changes with which it fits ({found.changes_tried} changes tried" in str(found)


@pytest.mark.parametrize(
    "machine",
    [24, 24.0, "24", "cpu", profiles.load("rtx4090"), target("rtx4090", 8), None],
    ids=["int", "float", "text", "cpu", "profile", "machine", "this"],
)
def test_a_machine_has_many_names(machine: Any) -> None:
    found = neaptide.plan(DEEP, CONFIG, machine, ram=16)
    assert found.fits
    assert found.tiers["RAM"].has == 16 * 2**30
    if machine not in ("cpu", None):
        assert found.tiers["device"].has == 24 * 2**30


@pytest.mark.parametrize("machine", [[24], object(), "rtx"])
def test_a_machine_that_is_none_is_refused(machine: Any) -> None:
    with pytest.raises(ConfigError, match="profile"):
        neaptide.plan(DEEP, CONFIG, machine)


def test_the_random_state_and_the_given_model_stay() -> None:
    before = torch.random.get_rng_state()
    model = nn.Linear(64, 64)
    weights = model.weight.detach().clone()
    neaptide.plan(lambda: (model, lambda module, batch: module(batch).mean()), CONFIG, "cpu")
    assert torch.equal(model.weight, weights)
    after = torch.random.get_rng_state()
    torch.random.set_rng_state(before)
    nn.Linear(64, 64)
    assert torch.equal(after, torch.random.get_rng_state())


def test_an_error_of_the_factory_is_the_users() -> None:
    def broken() -> nn.Module:
        raise KeyError("mine")  # noqa: EM101 - short

    with pytest.raises(KeyError, match="mine"):
        neaptide.plan(broken, CONFIG, "cpu")
