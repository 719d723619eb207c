"""What a comparison of known losses says, in its document, on the terminal and on its page."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import pytest

from neaptide.config import unstructure
from neaptide.hooks.enabling import configured
from neaptide.io.jsonable import jsonable
from neaptide_verbs.compare.findings import findings
from neaptide_verbs.compare.protocol import KNOBS
from neaptide_verbs.compare.runs import BUDGETS, ComparedRun, Comparison, ComparisonSettings
from neaptide_verbs.compare.shown.page import comparison_page
from neaptide_verbs.compare.shown.text import headline, level_rows, number, summary, verdict
from neaptide_verbs.compare.sides import Side
from neaptide_verbs.compare.sweep import Tuned
from neaptide_verbs.compare.trials import Result

if TYPE_CHECKING:
    from collections.abc import Mapping

SHORT, WHOLE, LONG = BUDGETS
SEEDS = (3, 4, 5)
TASK = {"model": {"name": "builtin:mlp"}, "data": {"name": "builtin:digits"}}


def law(share: float) -> float:
    return 1.0 - 0.2 * math.log(share)


def result(
    loss: float, share: float, jumps: int = 0, seconds: float = 1.0, threads: int = 1
) -> Result:
    return Result(loss, loss, round(1000 * share), seconds * share, jumps, 0, 0, 0.0, "", threads)


def compared(
    candidate: Mapping[tuple[float, int], float],
    baseline: Mapping[tuple[float, int], float] | None = None,
    *,
    jumps: int = 2,
    tuned: bool = True,
    seconds: float = 1.0,
    threads: int = 1,
    chosen: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the findings where the baseline has `law` and the candidate the given losses."""
    losses = {(share, seed): law(share) for share in BUDGETS for seed in SEEDS}
    runs = [
        ComparedRun("baseline", seed, share, result(loss, share))
        for (share, seed), loss in {**losses, **(baseline or {})}.items()
    ]
    runs += [
        ComparedRun("candidate", seed, share, result(loss, share, jumps, seconds, threads))
        for (share, seed), loss in candidate.items()
    ]
    plain = configured({**TASK})[0]
    jumping = configured({**TASK, "plugins": {"predictor-drift": {}}})[0]
    sides = (Side("baseline", unstructure(plain)), Side("candidate", unstructure(jumping)))
    found = {side.name: Tuned(chosen or {}, KNOBS, ()) for side in sides} if tuned else {}
    return findings(
        Comparison(ComparisonSettings(seeds=SEEDS, sweeps=tuned), sides, found, tuple(runs))
    )


def plain_values(config: Any) -> dict[str, Any]:
    from neaptide.config import unstructure

    return unstructure(config)


def worth(multiplier: float, noise: float = 0.0, share: float = WHOLE) -> dict[Any, float]:
    """Return a candidate's losses at both of its budgets."""
    shifts = dict(zip(SEEDS, (-noise, 0.0, noise), strict=True))
    return {
        (at, seed): law(at * multiplier) + shift
        for at in (SHORT, share)
        for seed, shift in shifts.items()
    }


def test_a_gain_is_a_speedup_with_its_interval() -> None:
    found = compared(worth(1.2, 0.005), seconds=1.1)
    said = verdict(found)
    assert said.startswith("candidate: speedup 1.200x (90 %: 1.1")
    assert "in backward passes, 1.091x" in said
    assert "no gain" not in said
    best = headline(found["sides"]["candidate"])
    assert best["kind"] in {"plain", "averaged"}
    assert 1.0 == best["at"]["fraction"]


def test_an_untuned_baseline_has_no_speedup_on_it_anywhere() -> None:
    found = compared(worth(1.2, 0.005), tuned=False)
    text = summary(found) + comparison_page(found, "x") + json.dumps(jsonable(found))
    assert "speedup" not in text
    assert "against an untuned baseline 1.200x" in text


def test_an_interval_that_holds_one_shows_no_gain() -> None:
    assert verdict(compared(worth(1.02, 0.05))).endswith("; no gain is shown")
    assert verdict(compared(worth(0.9, 0.001))).endswith("; a loss")


def test_a_run_without_jumps_says_so() -> None:
    assert verdict(compared(worth(1.0, 0.01), jumps=0)).endswith("not one jump was made")


def test_a_bad_run_is_not_judged_by_a_shorter_good_one() -> None:
    good = worth(1.1)
    bad = {**good, **{(WHOLE, seed): 5.0 for seed in SEEDS}}
    found = compared(bad)
    assert "candidate: no gain: worse than the baseline with 0.71 times its passes" in verdict(
        found
    )
    assert "below" == headline(found["sides"]["candidate"])["multiplier"]["outside"]
    one = compared({**good, (WHOLE, 4): math.inf})
    assert "candidate: no multiplier, for it diverged with at least one seed" in verdict(one)


def test_beyond_the_longest_baseline_it_is_more_than_that() -> None:
    said = verdict(compared(worth(3.0)))
    assert said.startswith("candidate: speedup of more than 1.41x in backward passes")


def test_a_baseline_that_diverged_cannot_be_compared_with() -> None:
    found = compared(worth(1.1), {(WHOLE, 4): math.inf})
    assert "no multiplier, for the baseline diverged" in verdict(found)


def test_a_budget_at_which_a_seed_diverged_is_not_on_the_curve() -> None:
    found = compared(worth(1.2), {(LONG, 4): math.inf})
    assert "more than 1.00x" in verdict(found)
    nothing = compared(worth(1.2), {(at, seed): math.inf for at in BUDGETS for seed in SEEDS})
    assert [] == nothing["levels"]
    assert "<svg" in comparison_page(nothing, "x")


def test_negative_losses_are_worth_the_same() -> None:
    down = {key: loss - 7.0 for key, loss in worth(1.2, 0.005).items()}
    base = {(share, seed): law(share) - 7.0 for share in BUDGETS for seed in SEEDS}
    assert verdict(compared(worth(1.2, 0.005))) == verdict(compared(down, base))


@pytest.mark.parametrize("multiplier", [0.1, 1.0, 10.0])
def test_the_document_is_json_for_every_reader(multiplier: float) -> None:
    for found in (compared(worth(multiplier)), compared({**worth(1.0), (WHOLE, 4): math.inf})):
        text = json.dumps(jsonable(found), allow_nan=False)
        again = json.loads(text)
        assert [*SEEDS] == again["seeds"]


def test_the_title_of_a_page_is_text() -> None:
    page = comparison_page(compared(worth(1.0)), "a<b>&c")
    assert "<h1>a&lt;b&gt;&amp;c</h1>" in page
    assert "a<b>" not in page


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (1.43721, "1.4372"),
        (0.0, "0.0000"),
        (-2.5, "-2.5000"),
        (0.00546789, "0.005468"),
        (math.inf, "inf"),
    ],
)
def test_small_losses_keep_four_figures(value: float | None, text: str) -> None:
    assert text == number(value)


def test_a_level_is_reached_late_at_once_or_not_at_all() -> None:
    found = compared(worth(1.0, share=WHOLE))
    far = {(at, seed): law(at * 3.0) for at in (SHORT, WHOLE) for seed in SEEDS}
    poor = {(at, seed): law(at / 3.0) for at in (SHORT, WHOLE) for seed in SEEDS}

    def told(candidate: Mapping[tuple[float, int], float]) -> list[str]:
        return [row[2] for row in level_rows(compared(candidate))[1:]]

    assert [False] * 3 == [each["needed"]["candidate"]["at_most"] for each in found["levels"]]
    assert all(cell.startswith("<707 (<") for cell in told(far))
    assert ["not reached"] * 3 == told(poor)
    assert told(worth(1.0))[1].startswith("1000 (")


def test_times_are_of_the_same_budget() -> None:
    found = compared(worth(1.1), seconds=1.25)
    for at in found["sides"]["candidate"]["budgets"]:
        ratio = at["plain"]["time_multiplier"]["mean"] / at["plain"]["multiplier"]["mean"]
        assert pytest.approx(0.8) == ratio


def test_what_trained_the_same_is_worth_the_same_and_has_no_times() -> None:
    bumpy = {(WHOLE, 4): 0.1, (LONG, 3): 2.0}  # a longer run may be worse
    same = {
        (share, seed): {(WHOLE, 4): 0.1}.get((share, seed), law(share))
        for share in (SHORT, WHOLE)
        for seed in SEEDS
    }
    for at in compared(same, bumpy)["sides"]["candidate"]["budgets"]:
        assert pytest.approx(1.0) == at["plain"]["multiplier"]["mean"]
        assert math.isnan(at["plain"]["time_multiplier"]["mean"])
    text = summary(compared(same, bumpy))
    assert "nan" not in text
    assert "in time" not in text


def test_times_with_other_threads_are_not_compared() -> None:
    found = compared(worth(1.2, 0.005), threads=2)
    assert "in time" not in verdict(found)
    assert None is re.search(r"\bnan\b", summary(found) + comparison_page(found, "x"))
    assert "speedup of more than 1.41x in backward passes:" in verdict(
        compared(worth(3.0), threads=2)
    )


def test_what_was_chosen_is_told_as_settings() -> None:
    found = compared(worth(1.2), chosen={"optimizer": {"lr": 0.01}, "eval": {"every": 3}})
    assert "baseline: tuned to optimizer.lr = 0.01, eval.every = 3\n" in summary(found)
