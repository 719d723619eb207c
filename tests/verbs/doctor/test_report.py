"""Verdict and exit code follow from the gravest finding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neaptide import Finding
from neaptide.api.records import LEVELS, Level
from neaptide_verbs.doctor.report import Report, Section


def report_of(*levels: Level) -> Report:
    findings = tuple(Finding(level, "what", "detail") for level in levels)
    return Report((Section("One", findings), Section("Two", findings[:0])), {}, "the CPU")


@pytest.mark.parametrize(
    ("levels", "code", "verdict"),
    [
        ((), 0, "ready to train on the CPU"),
        (("ok", "note"), 0, "ready to train on the CPU"),
        (("warning", "ok"), 0, "ready to train on the CPU, with 1 warning"),
        (("warning", "warning"), 0, "ready to train on the CPU, with 2 warnings"),
        (("error", "ok"), 1, "1 error: solve the errors first"),
        (("warning", "error", "error"), 1, "2 errors and 1 warning: solve the errors first"),
    ],
)
def test_the_verdict(levels: tuple[Level, ...], code: int, verdict: str) -> None:
    report = report_of(*levels)
    assert (code, verdict) == (report.exit_code, report.verdict)


@given(st.lists(st.sampled_from(LEVELS)))
def test_only_errors_fail_and_nothing_gets_lost(levels: list[Level]) -> None:
    report = report_of(*levels)
    printed = report.structured()
    assert ("error" in levels) == bool(report.exit_code) == (not printed["ok"])
    assert levels == [found["level"] for found in printed["findings"]]


def test_a_level_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="level"):
        Finding("fatal", "what", "detail")  # type: ignore[arg-type]  # that is the point
