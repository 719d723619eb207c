"""`neaptide plan --device all`: several cards beside each other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from plans import planned

from neaptide_toolkit.machine import profiles

if TYPE_CHECKING:
    from pathlib import Path


def test_every_card_is_in_the_table_with_its_own_time(tmp_path: Path) -> None:
    done = planned(tmp_path, "--device", "all", "--ram", "64")
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = done.stdout.splitlines()
    assert head.startswith("card ")
    assert head.endswith("  an update  tokens/s at most  bound by  rates")
    assert [row for row in rows if " fits " in row] == rows[: len(profiles.names())]
    assert rows[-1].startswith("RAM needs ")
    assert rows[-1].endswith(" of 64.0 GiB: fits")


def test_cards_together_have_the_plans_of_each_alone(tmp_path: Path) -> None:
    both = json.loads(planned(tmp_path, "--device", "t4,h200", "--ram", "64", "--json").stdout)
    for name, plan in zip(("t4", "h200"), both, strict=True):
        done = planned(tmp_path, "--device", name, "--ram", "64", "--json")
        alone = json.loads(done.stdout)
        for one in (plan, alone):
            one["tiers"].pop("RAM")  # it has this process's bytes
            one["peak_bytes"].pop("RAM")
            one.pop("verdict")
        assert plan == alone


def test_it_ends_with_3_if_no_card_is_enough(tmp_path: Path) -> None:
    done = planned(tmp_path, "--device", "t4,rtx4090", "--ram", "0.01")
    assert done.returncode == 3
    *rows, ram, way_out = done.stdout.splitlines()
    assert ["no: RAM" in row for row in rows] == [False, True, True, False]
    assert ram.endswith(" of 10.2 MiB: does not fit")
    assert way_out.startswith("no card is enough; with one --device")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--device", "rtx4090,16"), "several devices are shipped profiles, as in rtx3090,rtx4090"),
        (("--device", "rtx4090,rtx4o90"), "no machine profile 'rtx4o90' (did you mean"),
        (("--device", "all", "--html", "page.html"), "of one device; name one @ --device"),
        (("--device", "all", "--write", "fits.toml"), "of one device; name one @ --device"),
    ],
)
def test_what_several_cards_cannot_be_asked_is_refused(
    words: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    done = planned(tmp_path, *words)
    assert done.returncode == 2
    assert problem in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]
