"""`pytest --simulated-gpu` tells races in setup, call and teardown, whatever else the test does."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

TESTS = """
import pytest, torch

def race():
    if not torch.cuda.is_available():
        return
    tensor = torch.zeros(1024, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        tensor.add_(1)
    torch.cuda.synchronize()

@pytest.fixture
def before():
    race()

@pytest.fixture
def after():
    yield
    race()

def test_none():
    torch.zeros(8, device="cuda" if torch.cuda.is_available() else "cpu")

def test_call():
    race()

def test_setup(before):
    pass

def test_teardown(after):
    pass

def test_fails():
    race()
    raise KeyError("its own")

@pytest.mark.xfail(strict=True)
def test_expected_to_fail():
    race()
    raise KeyError("its own")

def test_skips():
    race()
    pytest.skip("late")

def test_after_all():
    pass
"""


def outcomes(folder: Path, *options: str) -> tuple[dict[str, str], str]:
    (folder / "test_mine.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *options]
    done = subprocess.run(
        [*command, "test_mine.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    found = re.findall(
        r"^(PASSED|FAILED|ERROR|XFAIL|SKIPPED)\b.*::(\w+)", done.stdout, re.MULTILINE
    )
    return {name: kind for kind, name in found}, done.stdout


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], str]:
    return outcomes(tmp_path_factory.mktemp("simulated"), "--simulated-gpu")


@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        ("test_none", "PASSED"),
        ("test_call", "FAILED"),
        ("test_setup", "ERROR"),
        ("test_teardown", "ERROR"),
        ("test_fails", "FAILED"),
        ("test_expected_to_fail", "FAILED"),
        ("test_skips", "FAILED"),
        ("test_after_all", "PASSED"),
    ],
)
def test_a_race_fails_its_test(
    test: str, outcome: str, simulated: tuple[dict[str, str], str]
) -> None:
    assert simulated[0][test] == outcome


def test_each_race_is_told_once_beside_the_tests_own_error(
    simulated: tuple[dict[str, str], str],
) -> None:
    _, output = simulated
    told = re.split(r"^_{3,} .*?(test_\w+) _{3,}$", output, flags=re.MULTILINE)
    by_test = dict(zip(told[1::2], told[2::2], strict=True))
    assert {"test_none", "test_after_all"} & by_test.keys() == set()
    for name, text in by_test.items():
        assert "races on the simulated device" in text, name
    assert "KeyError: 'its own'" in by_test["test_fails"]


def test_without_the_option_nothing_is_told(tmp_path: Path) -> None:
    found, output = outcomes(tmp_path)
    assert found.pop("test_fails") == "FAILED"
    assert found.pop("test_expected_to_fail") == "XFAIL"
    assert "SKIPPED" in output
    assert set(found.values()) == {"PASSED"}
    assert "race" not in output.replace("race()", "")
