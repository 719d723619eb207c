"""Tokens per second, gradient norms, perplexities, and why no jump was made, in a report."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest

from neaptide_verbs.report.comparison import comparison_summary
from neaptide_verbs.report.facts import as_json, key_figures
from neaptide_verbs.report.reading import RunFacts, read_run
from neaptide_verbs.report.single import run_page
from neaptide_verbs.report.summary import run_summary

if TYPE_CHECKING:
    from conftest import Write

ROWS = ("1,full,2.0,false,1.5,,0.1,,", "2,full,1.5,false,0.75,,0.1,,")
METRICS = [
    {"step": 1, "phase": "full", "tokens_per_second": 12_000.0, "val_loss": 1.0},
    {"step": 2, "phase": "full", "tokens_per_second": 14_000.0},
]
PER_TOKEN = {"level": "info", "event": "loss.per_token"}


def figures(run: RunFacts) -> dict[str, str]:
    """Return the key figures by name."""
    return {name: f"{value} {more}".rstrip() for name, value, more in key_figures(run)}


def test_tokens_per_second_and_gradient_norm_are_shown(write: Write) -> None:
    run = read_run(write(ROWS, metrics=METRICS))
    shown = figures(run)
    assert ("13,000 mean", "0.7500 at 2") == (shown["tokens per second"], shown["gradient norm"])
    page = run_page(run)
    assert "<b>Tokens per second</b>" in page
    assert "<b>Gradient norm</b>" in page
    assert "tokens per second  13,000 mean" in run_summary(run, colour=False)
    assert "tokens per second" in comparison_summary([run, run], colour=False)
    found = as_json(run)
    assert (13_000.0, 0.75) == (found["tokens_per_second"]["mean"], found["grad_norm"]["min"])


def test_what_a_run_does_not_have_is_not_shown(write: Write) -> None:
    run = read_run(write(("1,full,2.0,false,,,0.1,,",)))
    names = figures(run).keys()
    assert not names & {"tokens per second", "gradient norm", "perplexity"}
    assert "Gradient norm" not in run_page(run)


def test_a_loss_per_token_has_a_perplexity(write: Write) -> None:
    run = read_run(write(ROWS, metrics=METRICS, events=[PER_TOKEN]))
    shown = figures(run)
    assert f"{math.exp(1.5):.4f} at 2" == shown["perplexity"]
    assert f"{math.e:.4f} at 1" == shown["validation perplexity"]
    for text in (run_page(run), run_summary(run, colour=False)):
        assert f"{math.exp(1.75):.4f}" in text  # of the mean
    assert {"perplexity", "validation perplexity"} == as_json(run)["perplexity"].keys()


def test_a_loss_that_is_not_known_to_be_per_token_has_none(write: Write) -> None:
    run = read_run(write(ROWS, metrics=METRICS))
    assert "perplexity" not in run_page(run) + run_summary(run, colour=False)


def test_a_perplexity_may_be_too_large_for_a_float(write: Write) -> None:
    run = read_run(write(("1,full,1e9,false,,,0.1,,",), events=[PER_TOKEN]))
    assert "inf at 1" == figures(run)["perplexity"]


def test_every_declined_and_refused_jump_has_a_reason(write: Write) -> None:
    rose = "the probe loss rose from {} to 9.5, over 2.3"
    events: list[dict[str, Any]] = [
        {"event": "jump.accepted", "step": 2},
        {"event": "jump.refused", "step": 3, "reason": rose.format("2.25")},
        {"event": "jump.refused", "step": 4, "reason": rose.format("1e-05")},
        {"event": "jump.refused", "step": 5, "reason": "the delta of blocks.3.w is not finite"},
        {"event": "jump.declined", "step": 6, "reason": "predictor-drift: its window is not full"},
        {"event": "jump.declined", "step": 7},
    ]
    run = read_run(write(ROWS, events=events))
    assert [
        {"verdict": "refused", "count": 2, "reason": "the probe loss rose from … to …, over …"},
        {"verdict": "refused", "count": 1, "reason": "the delta of blocks.3.w is not finite"},
        {"verdict": "declined", "count": 1, "reason": "predictor-drift: its window is not full"},
        {"verdict": "declined", "count": 1, "reason": "no reason is recorded"},
    ] == as_json(run)["jumps"]["reasons"]
    for text in (run_page(run), run_summary(run, colour=False)):
        assert "the probe loss rose from … to …, over …" in text


def test_reasons_without_end_are_bounded(write: Write) -> None:
    events = [
        {"event": "jump.declined", "step": n, "reason": f"because{'e' * n}"} for n in range(99)
    ]
    reasons = as_json(read_run(write(ROWS, events=events)))["jumps"]["reasons"]
    assert {"verdict": "declined", "count": 59, "reason": "(other)"} == reasons[0]
    assert 41 == len(reasons)


@pytest.mark.parametrize("title", ["Loss by phase", "Gradient norm", "Tokens per second"])
def test_the_values_of_a_chart_are_under_the_pointer(write: Write, title: str) -> None:
    page = run_page(read_run(write(ROWS, metrics=METRICS)))
    drawing = page.split(f"<b>{title}</b>")[1].split("</figure>")[0]
    assert 2 == drawing.count('class="hover"')
    values = {"Loss by phase": "1.5000", "Gradient norm": "0.7500", "Tokens per second": "14,000"}
    assert f"<title>step 2\nfull: {values[title]}</title>" in drawing


def test_a_real_run_has_norms_and_a_reason_for_each_step_without_a_jump(neaptide: Any) -> None:
    args = ("--set", "run.dir=run", "--quiet", "--set", "plugins.predictor-drift.min_window=9")
    assert 0 == neaptide("run", "tiny.toml", *args).code
    found = json.loads(neaptide("report", "run", "--json", "--no-html").out)
    assert 2 == found["grad_norm"]["count"]  # of updates 10 and 20
    assert found["jumps"]["counts"].get("declined")
    reasons = {one["reason"] for one in found["jumps"]["reasons"] if one["verdict"] == "declined"}
    assert {"predictor-drift: its window of updates is not full"} == reasons
