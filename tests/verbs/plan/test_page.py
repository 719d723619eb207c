"""`neaptide plan --html` writes a page that loads and runs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from plans import planned

from neaptide_verbs.plan.page import plan_page
from neaptide_verbs.plan.value import Plan, TierPlan

if TYPE_CHECKING:
    from pathlib import Path


def test_the_page_has_a_bar_for_each_moment_and_tier(tmp_path: Path) -> None:
    done = planned(tmp_path, "--device", "rtx4090", "--ram", "64", "--html", "plan.html")
    assert (done.returncode, done.stderr) == (0, "page: plan.html\n")
    text = (tmp_path / "plan.html").read_text()
    assert text.startswith("<!DOCTYPE html>")
    for part in ("<h2>device</h2>", "<h2>RAM</h2>", "full backward: ", "weights: ", "fits, "):
        assert part in text
    assert "<script" not in text
    assert "http" not in text
    again = planned(tmp_path, "--html", "plan.html")
    assert again.returncode == 2
    assert "plan.html exists already" in again.stderr


def test_what_strangers_wrote_is_text() -> None:
    evil = "<script>alert(1)</script>"
    tier = TierPlan(moments={evil: 1}, worst=evil, kinds={evil: 2}, needed=3, has=None)
    plan = Plan(
        machine=evil,
        tiers={evil: tier},
        seconds_per_step=1.0,
        tokens_per_second=None,
        bound_by=evil,
        busy={evil: 1.0},
    )
    assert "<script" not in plan_page(attrs.evolve(plan, changes_tried=1))
