"""What fits: the page is what the dry runs say, and the search finds the last that fits."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
FILE, PAGE = (ROOT / "docs" / "benchmarks" / f"fits.{kind}" for kind in ("json", "md"))


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The script and its modules."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.syspath_prepend(str(ROOT / "bench" / "simulated"))
    import fits
    from scaling.fits import fitting, trials

    from neaptide_verbs.plan.auto import rungs

    return SimpleNamespace(script=fits, fitting=fitting, rungs=rungs, trials=trials)


@pytest.fixture
def kept() -> dict[str, Any]:
    """What the script has written."""
    found: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return found


def from_file(kept: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    return lambda trial: kept["runs"][trial.key]


def test_rows_and_page_are_those_of_the_dry_runs(
    fits: SimpleNamespace, kept: dict[str, Any]
) -> None:
    cards = [*dict.fromkeys(row["card"] for row in kept["models"])]
    rows = fits.script.every_row(from_file(kept), cards)
    assert {name: kept[name] for name in rows} == rows
    page = PAGE.read_text("utf-8")
    for name, text in fits.script.tables(kept).items():
        begin, end = fits.script.MARKS[name]
        assert f"{begin}\n\n{text}\n\n{end}" in page


def test_a_row_fits_and_says_what_binds(fits: SimpleNamespace, kept: dict[str, Any]) -> None:
    for row in kept["models"] + kept["contexts"]:
        machine = fits.fitting.Machine(row["card"], row["ram_gib"])
        assert all(row[tier] <= most for tier, most in machine.caps.items())
        if row["ram_gib"] is None:
            assert row["binds"] == "device"
    by_size = {(row["card"], row["ram_gib"] or 10**9): row["parameters"] for row in kept["models"]}
    for card in {card for card, _ in by_size}:
        sizes = [size for (other, _), size in sorted(by_size.items()) if other == card]
        assert sizes == sorted(sizes)  # more RAM, no smaller model


def test_few_blocks_take_of_the_card_what_all_blocks_take(
    fits: SimpleNamespace, kept: dict[str, Any]
) -> None:
    pairs = 0
    for row in kept["models"]:
        for way in fits.fitting.TIGHT:
            model = (row["optimizer"], row["width"], row["blocks"])
            trial = fits.trials.Trial(*model, fits.trials.WINDOWS, fits.trials.WINDOW, way)
            try:
                few = fits.fitting.of_few_blocks(trial, from_file(kept))
                whole = kept["runs"][trial.key]
            except KeyError:
                continue
            pairs += 1
            assert few["device"] == pytest.approx(whole["device"], rel=2e-3)
            assert few["ram"] == pytest.approx(whole["ram"], rel=1e-2)
    assert pairs > 2


def test_the_widths_of_scale_are_rungs(fits: SimpleNamespace) -> None:
    from scaling.configurations import SHAPES

    rungs = [*fits.trials.ladder()]
    for name in ("7b", "13b", "50b"):
        shape = SHAPES[name]
        assert fits.trials.shape_of(shape.width, shape.blocks) == shape
        assert (shape.width, shape.blocks) in rungs
    sizes = [fits.trials.shape_of(*rung).parameters for rung in rungs]
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize("guess", [0, 3, 57, 99, 500])
@pytest.mark.parametrize("last", [-1, 0, 1, 56, 57, 98, 99])
def test_the_last_rung_that_fits_is_found_wherever_it_is_guessed(
    fits: SimpleNamespace, last: int, guess: int
) -> None:
    tried: list[int] = []

    def does(rung: int) -> bool:
        tried.append(rung)
        return rung <= last

    assert fits.rungs.largest(100, does, guess) == last
    assert len(tried) == len(set(tried))
    assert {last, last + 1} & {*range(100)} <= set(tried)
    if last == guess:
        assert len(tried) <= 2


def test_a_rerun_goes_on_where_the_time_was_over(
    fits: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fits.json"
    assert fits.script.main(["--json", str(file), "--cards", "t4", "--seconds", "0"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("fits: the time is over before adamw ")
    assert not file.exists()

    runs = fits.script.Runs(file, 60.0)
    trial = fits.trials.Trial("adamw", 256, 2, 1, 256, fits.trials.Way())
    made = runs(trial)
    assert made["device"]["t4"] > made["cards"]["t4"][0] > 0
    again = fits.script.Runs(file, 0.0)
    assert again(trial) == made
