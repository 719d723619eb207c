"""The list of long tests names functions that are there; of each, as many cases run as it says."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import long_tests
import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]


def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("path", [long_tests.LIST, long_tests.SIMULATED])
def test_every_listed_function_is_there(path: Path) -> None:
    listed = long_tests.listed(path).keys()
    files = {name.partition("::")[0] for name in listed}
    assert set() == listed - {f"{file}::{name}" for file in files for name in functions(file)}


@given(cases=st.integers(0, 50), count=st.integers(0, 60))
def test_as_many_cases_run_as_the_list_says(cases: int, count: int) -> None:
    items = [cast("pytest.Item", SimpleNamespace(nodeid=f"a::b[{one}]")) for one in range(cases)]
    left = [*long_tests.rest_of(items, count)]
    assert min(cases, count) == cases - len(left)
    assert len(left) == len({id(one) for one in left})


def test_what_takes_long_is_cut_to_its_share(tmp_path: Path) -> None:
    def case(name: str, seconds: float) -> str:
        return f'<testcase classname="tests.core.test_a" name="{name}" time="{seconds}"/>'

    cases = [case(f"test_sweep[{one}]", long_tests.SHARE / 3) for one in range(9)]
    cases += [case("test_alone", long_tests.ALONE + 1), case("test_quick", 0.1)]
    cases += [case(f"test_pair[{one}]", 2 * long_tests.ALONE + 1) for one in "ab"]
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuite>{''.join(cases)}</testsuite>", encoding="utf-8")
    expected: dict[str, Any] = {"test_alone": 0, "test_pair": 0, "test_sweep": 3}
    found = dict(long_tests.chosen(long_tests.measured(report)))
    assert {f"tests/core/test_a.py::{name}": count for name, count in expected.items()} == found
