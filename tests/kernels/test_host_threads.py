"""Functions compiled by Numba: where nothing is compiled, and where no cache can be written."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from neaptide_kernels import apply_delta
from neaptide_kernels.registry import KERNELS

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("numba")

CALL = """
import torch
from neaptide_kernels.apply_delta import apply_delta
weight = torch.zeros(3)
apply_delta([weight], [torch.ones(3)], torch.tensor(0.5), True)
assert weight.tolist() == [0.5] * 3
"""
NO_CACHE = f"""
from numba.core import caching
kind = getattr(caching, "CacheImpl", None) or caching._CacheImpl  # by Numba's version
kind._locator_classes = []
{CALL}
"""


@pytest.mark.parametrize(("value", "runs"), [("0", "numba"), ("", "numba"), ("1", "reference")])
def test_where_numba_compiles_nothing_the_reference_runs(
    monkeypatch: pytest.MonkeyPatch, value: str, runs: str
) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", value)
    weight = torch.zeros(3)
    told = KERNELS.explain("apply_delta", ([weight], [weight], torch.tensor(1.0), True))
    assert told.chosen == runs


def test_numba_does_not_take_colours_into_its_hands(tmp_path: Path) -> None:
    stub = "__version__ = '0.4.6'\ninit = reinit = deinit = Fore = Style = None\n"
    (tmp_path / "colorama.py").write_text(stub)
    code = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{CALL}"
    code += "from numba.core import errors\nassert not hasattr(errors, 'init')\nimport colorama\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_a_folder_for_the_cache_each_process_compiles_and_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", NO_CACHE],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        "add_delta is compiled for this CPU, in each process: no folder for its cache can be "
        "written: it takes some seconds\n"
    )


def test_threads_share_all_elements_and_a_weight_listed_twice_is_added_to_twice() -> None:
    sizes = [1, 300_000, 0, 1024, 700_001]
    weights = [torch.randn(size, device="cpu") for size in sizes]
    deltas = [torch.randn(size, device="cpu") for size in [*sizes, sizes[1]]]
    half, listed = torch.tensor(0.5, device="cpu"), [*weights, weights[1]]
    expected = [weight.clone() for weight in weights]
    for weight, delta in zip([*expected, expected[1]], deltas, strict=True):
        weight.add_(delta * 0.5)
    told = KERNELS.explain("apply_delta", (listed, deltas, half))
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        apply_delta.apply_delta(listed, deltas, half)
    finally:
        torch.set_num_threads(threads)
    assert told.chosen == "numba"
    assert all(torch.equal(one, other) for one, other in zip(weights, expected, strict=True))
