"""The shipped profiles of machines, and what a bad one says."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import pytest

from neaptide.errors import ConfigError
from neaptide_toolkit.machine import profiles

ROOT = Path(__file__).resolve().parents[3]
NAMES = (
    "a100",
    "h100",
    "h200",
    "rtx3090",
    "rtx4070",
    "rtx4080",
    "rtx4090",
    "rtx5080",
    "rtx5090",
    "t4",
)


def written(path: Path, **changed: Any) -> Path:
    content = attrs.asdict(profiles.load("t4"))
    content["rates"] |= changed.pop("rates", {})
    path.write_text(json.dumps({**content, **changed}), "utf-8")
    return path


def test_these_machines_have_a_profile() -> None:
    assert NAMES == profiles.names()
    assert all(profiles.path_of(name).is_file() for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_rate_of_a_shipped_profile_has_a_source(name: str) -> None:
    machine = profiles.load(name)
    rates = attrs.asdict(machine.rates)
    assert list(rates) == list(machine.sources)
    assert machine.rates.flops_single < machine.rates.flops_half
    assert machine.rates.to_device < machine.rates.bandwidth


def test_the_page_on_plans_counts_the_sources_of_the_shipped_rates() -> None:
    counts = {
        name: Counter(source.split(":")[0] for source in profiles.load(name).sources.values())
        for name in NAMES
    }
    most = {"data sheet": 4, "assumed": 10}
    peers = {"data sheet": 5, "assumed": 9}
    here = {"measured": 13, "assumed": 1}
    expected = dict.fromkeys(NAMES, most) | {"a100": peers, "h200": peers, "h100": here}
    assert counts == expected
    page = " ".join((ROOT / "docs" / "plan.md").read_text("utf-8").split())
    assert (
        "Of the 14 rates of a shipped profile, 4 are from a data sheet, 10 are assumed and none is "
        "measured; for `a100` and `h200`, 5 are from a data sheet and 9 are assumed; for `h100`, "
        "13 are measured and 1 is assumed."
    ) in page


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_is_equal_after_writing_and_reading(name: str, tmp_path: Path) -> None:
    machine = profiles.load(name)
    copy = tmp_path / "copy.json"
    copy.write_text(json.dumps(attrs.asdict(machine)), "utf-8")
    assert machine == profiles.load(copy)


def test_an_unknown_name_gets_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'rtx409' \(did you mean 'rtx4090'\?\); there is a100,"):
        profiles.load("rtx409")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rates": {"bandwith": 1}}, r"unknown key 'bandwith' \(did you mean 'bandwidth'\?\)"),
        ({"rates": {"peer": -1.0}}, r"'peer' must be > 0"),
        ({"rates": {"capacity": 1.5}}, r"expected an integer \(got 1.5"),
        ({"rates": {"disk_read": "fast"}}, r"@ rates.disk_read"),
        ({"sources": {}}, r"must name a source for each rate"),
        ({"sources": dict.fromkeys(attrs.asdict(profiles.load("t4").rates), "heard")}, "'heard'"),
    ],
)
def test_a_bad_file_gets_one_line_with_its_path(
    changed: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "bad.json", **changed)
    with pytest.raises(ConfigError, match=said) as raised:
        profiles.load(path)
    (line,) = str(raised.value).splitlines()
    assert line.startswith(f"{path}: ")


@pytest.mark.parametrize(("text", "said"), [("{", "not JSON"), ("[1]", "expected an object")])
def test_a_file_that_is_no_profile_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=said):
        profiles.load(path)
