"""Changes with which a configuration fits, and what the command writes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from plans import KINDS, neaptide, planned

from neaptide.config import unstructure
from neaptide.config.tables import overlay
from neaptide.errors import DoesNotFitError
from neaptide.hooks.enabling import configured
from neaptide.hooks.registry import installed_plugins
from neaptide.io.logging import CONSOLE
from neaptide_verbs.plan import search
from neaptide_verbs.plan.machine import target
from neaptide_verbs.plan.planning import PlanTooLongError, plan, plan_if_fits
from neaptide_verbs.plan.search import MOST, searched, with_changes
from neaptide_verbs.plan.value import changes

if TYPE_CHECKING:
    from pathlib import Path

LAYERS, WIDTH = 5, 512
DEEP = {
    "model": {"name": f"{KINDS}:deep", "options": {"layers": LAYERS, "width": WIDTH}},
    "data": {"name": f"{KINDS}:sequences", "options": {"width": WIDTH}},
    "train": {"batch_size": 8},
}
OFFERS = [
    (name, settings)
    for name, spec in installed_plugins().usable().items()
    for settings in spec.search_space
]


def config_of(**more: Any) -> Any:
    return configured(overlay(DEEP, more), ())[0]


def test_an_exact_change_comes_first_and_fits_by_its_own_plan() -> None:
    config = config_of()
    resident = plan(config, target("rtx4090", 64)).tiers["device"].needed
    machine = target(str(resident * 0.9 / 2**30), 64)
    assert not plan(config, machine).fits
    found = searched(config, machine)
    assert 0 < found.changes_tried <= MOST
    ranks = ["exact", "tolerance", "changes-training"]
    assert found.changes[0].numerics == "exact"
    assert sorted(found.changes, key=lambda one: ranks.index(one.numerics)) == [*found.changes]
    for remedy in found.changes:
        assert plan(remedy.config, machine).fits
        assert remedy.config == configured(unstructure(remedy.config), ())[0]


@pytest.mark.slow
def test_where_nothing_fits_nothing_is_found() -> None:
    found = searched(config_of(), target("0.6", 0.01))
    assert found.changes == ()
    assert found.changes_tried > len(OFFERS) / 2


def test_a_plan_that_does_not_fit_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of()
    whole = plan(config, target("rtx4090", 64))
    weights = LAYERS * 12 * WIDTH * WIDTH * 4
    monkeypatch.setattr("neaptide_toolkit.dry_run.running.HybridTrainer.step", None)  # no step runs
    for machine in (target("0.9", 64), target("rtx4090", weights / 2**30 / 2), target("cpu", 0.01)):
        with pytest.raises(DoesNotFitError, match="tensors take more than"):
            plan_if_fits(config, machine)
    monkeypatch.undo()
    with pytest.raises(DoesNotFitError, match="does not fit: the device needs"):
        # tensors fit, but not with what the allocator takes beyond them
        plan_if_fits(config, target(str((whole.peak_bytes["device"] - 1) / 2**30), 64))
    assert plan_if_fits(config, target("rtx4090", 64)).fits


def test_a_search_ends_when_its_time_is_over() -> None:
    config, machine = config_of(), target("0.9", 64)
    made = plan(config, machine)
    assert not made.fits
    with pytest.raises(PlanTooLongError):
        plan_if_fits(config, machine, time.monotonic())
    none = with_changes(made, config, machine, 0.0)
    assert (none.changes, none.changes_tried, none.changes_left) == ((), 0, True)
    assert changes(none).endswith("(0 changes tried, not all)")
    assert search.seconds_left(time.monotonic()) == pytest.approx(search.LONGEST, abs=1)
    assert search.seconds_left(time.monotonic() - 3600) == search.LEAST


def test_what_a_tried_change_logs_is_not_heard(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config, machine = config_of(), target("0.9", 64)
    made = plan(config, machine)

    def told(*_: Any) -> None:
        CONSOLE.warning("again")
        msg = "too small"
        raise DoesNotFitError(msg)

    monkeypatch.setattr(search, "plan_if_fits", told)
    caplog.clear()
    assert with_changes(made, config, machine).changes_tried
    CONSOLE.warning("after it")
    assert ["after it"] == [one.message for one in caplog.records]


@pytest.mark.parametrize(("name", "settings"), OFFERS, ids=str)
def test_what_a_plugin_offers_is_a_configuration(name: str, settings: dict[str, Any]) -> None:
    config, ordered = configured(overlay(DEEP, settings), ())
    assert name in [spec.name for spec in ordered]
    assert config != config_of()


def test_what_is_written_passes_the_check_and_fits(tmp_path: Path) -> None:
    needed = plan(config_of(), target("rtx4090", 64)).peak_bytes["device"]
    machine = ("--device", str(0.9 * needed / 2**30), "--ram", "64")
    done = planned(tmp_path, *machine, "--write", "fits.toml", layers=LAYERS, width=WIDTH)
    assert done.returncode == 3
    assert "changes with which it fits (" in done.stdout
    assert done.stderr == "written to fits.toml\n"
    again = neaptide(tmp_path, "plan", "fits.toml", *machine)
    assert (again.returncode, again.stderr) == (0, "")
    assert neaptide(tmp_path, "config", "check", "fits.toml").returncode == 0
    kept = (tmp_path / "fits.toml").read_text()
    refused = neaptide(tmp_path, "plan", "fits.toml", *machine, "--write", "fits.toml")
    assert refused.returncode == 2
    assert refused.stderr == "error: fits.toml exists already; name another file\n"
    assert (tmp_path / "fits.toml").read_text() == kept
