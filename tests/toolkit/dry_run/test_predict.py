"""A dry run goes through Predict and Correct where a plugin predicts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from neaptide.errors import PluginError
from neaptide.hooks.enabling import configured
from neaptide.hooks.registry import installed_plugins
from neaptide_toolkit.dry_run import running
from neaptide_toolkit.dry_run.running import DryRun, dry_run
from neaptide_toolkit.testing import kinds


def done(plugins: dict[str, Any], kind: str = "cuda") -> DryRun:
    options = {"width": 64}
    whole = {
        "model": {"name": f"{kinds.__name__}:deep", "options": options},
        "data": {"name": f"{kinds.__name__}:sequences", "options": options},
        "plugins": plugins,
    }
    return dry_run(configured(whole, ())[0], (), kind)


@pytest.mark.parametrize("name", ["drift", "extrapolate", "momentum"])
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_jump_and_its_correction_have_peaks(name: str, kind: str) -> None:
    found = done({f"predictor-{name}": {}}, kind)
    assert found.jumped is True
    peaks = found.allocations.peaks("device")
    assert {"predict predict", "predict forward", "correct backward"} <= peaks.keys()


def test_without_a_predictor_nothing_is_said_of_jumps() -> None:
    found = done({})
    assert found.jumped is None
    assert not any("predict" in during for during in found.allocations.peaks("device"))


def test_a_predictor_that_needs_values_does_not_jump_and_it_is_said() -> None:
    found = done({"predictor-dmd": {}})
    assert found.jumped is False
    assert "no jump was made" in found.assumptions[-1]


@pytest.mark.parametrize("settings", [{"min_windows": 4}, {"min_window": 1}])
def test_settings_that_a_plugin_refuses_in_its_own_manifest_are_one_line(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = installed_plugins().usable()
    wrong = attrs.evolve(found["predictor-drift"], dry_run=settings)
    usable = {**found, "predictor-drift": wrong}
    monkeypatch.setattr(
        running, "installed_plugins", lambda: SimpleNamespace(usable=lambda: usable)
    )
    with pytest.raises(PluginError, match=r"'predictor-drift': its settings refuse its dry_run"):
        done({"predictor-drift": {}})


@pytest.mark.parametrize(("tier", "other"), [("host", "device"), ("device", "host")])
def test_samples_are_planned_where_their_setting_puts_them(tier: Any, other: Any) -> None:
    plain, sampled = done({}), done({"predictor-momentum": {"tier": tier}})

    def peak(run: DryRun, place: Any) -> int:
        return run.allocations.peaks(place)["full backward"].bytes

    weights = sum(one.numel() for one in kinds.deep(width=64).module.parameters()) * 4
    assert peak(sampled, tier) - peak(plain, tier) == pytest.approx(weights, rel=0.1)
    assert peak(sampled, other) - peak(plain, other) < weights / 10
