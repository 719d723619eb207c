"""Steps with 8-bit state on a CPU, compiled by Numba, beside their references."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neaptide_kernels import adam8bit, host_threads, lion8bit
from neaptide_kernels.registry import KERNELS

pytest.importorskip("numba")

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

OPS: dict[str, tuple[Any, Any]] = {
    "adam8bit": (adam8bit, adam8bit.adam8bit_step),
    "lion8bit": (lion8bit, lion8bit.lion8bit_step),
}
DTYPES = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float32, torch.bfloat16),
]
FEW = 1e-4
"""The share of codes that a wrongly rounded root of torch may change, by one."""


def stepped(
    name: str,
    provider: str,
    sizes: Sequence[int],
    dtypes: tuple[torch.dtype, torch.dtype],
    *,
    seed: int = 0,
    updates: int = 3,
) -> list[torch.Tensor]:
    """Return weights and state after updates by a provider."""
    folder, op = OPS[name]
    draw = torch.Generator().manual_seed(seed)
    params = [torch.randn(size, generator=draw).to(dtypes[0]) for size in sizes]
    state = [list(each) for each in zip(*map(folder.new_state, params), strict=True)]
    with KERNELS.using(**{op.spec.name: provider}):
        for count in range(1, updates + 1):
            for step in state[-1]:
                step.fill_(60 + 2 * count)
            grads = [torch.randn(size, generator=draw).to(dtypes[1]) for size in sizes]
            op(params, grads, *state, torch.tensor(0.01), seed=seed)
    return [*params, *(tensor for tensors in state for tensor in tensors)]


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=4), seed=st.integers(0, 2**62))
def test_an_update_is_that_of_the_reference(
    name: str, dtypes: tuple[torch.dtype, torch.dtype], sizes: list[int], seed: int
) -> None:
    expected = stepped(name, "reference", sizes, dtypes, seed=seed, updates=1)
    got = stepped(name, "numba", sizes, dtypes, seed=seed, updates=1)
    for right, found in zip(expected, got, strict=True):
        if right.dtype in (torch.int8, torch.uint8):
            off = (right.int() - found.int()).abs()
            assert int(off.max() if off.numel() else 0) <= 1
            assert int((off > 0).sum()) <= 1 + FEW * off.numel()
        else:
            assert torch.equal(right, found)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
def test_a_gradient_of_inf_or_nan_spreads_as_in_the_reference(
    name: str, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    folder, op = OPS[name]
    results = []
    for provider in ("reference", "numba"):
        weight = torch.linspace(-1, 1, 1100).to(dtypes[0])
        state = [[each] for each in folder.new_state(weight)]
        state[-1][0].fill_(1)
        grad = torch.linspace(1, 2, 1100).to(dtypes[1])
        grad[[3, 300, 700]] = torch.tensor([torch.nan, torch.inf, -torch.inf]).to(dtypes[1])
        with KERNELS.using(**{op.spec.name: provider}):
            op([weight], [grad], *state, torch.tensor(0.01))
        results.append([weight, *(each[0] for each in state)])
    for right, found in zip(*results, strict=True):
        if right.is_floating_point():
            torch.testing.assert_close(found, right, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", OPS)
def test_the_number_of_threads_changes_no_bit(name: str) -> None:
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(stepped(name, "numba", [2_000_003, 7], DTYPES[0], updates=1))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.parametrize("name", OPS)
def test_it_runs_on_a_cpu_without_being_asked_for(name: str) -> None:
    folder, op = OPS[name]
    weight = torch.zeros(3)
    arguments = [weight], [weight], *([each] for each in folder.new_state(weight))
    chosen = KERNELS.explain(op.spec.name, (*arguments, torch.tensor(1.0))).chosen
    assert chosen == "numba"


def test_without_numba_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_threads, "find_spec", lambda _: None)
    weight = torch.zeros(3)
    arguments = [weight], [weight], *([each] for each in adam8bit.new_state(weight))
    told = KERNELS.explain("adam8bit_step", (*arguments, torch.tensor(1.0)))
    assert told.chosen == "reference"
    (reason,) = [each.reason for each in told.providers if each.provider == "numba"]
    assert reason == "Numba is not installed: pip install numba"


SCRIPT = """
import os, sys, torch
from neaptide_kernels import lion8bit

def arguments():
    weight = torch.ones(2**20, dtype=getattr(torch, sys.argv[1]))
    state = [[each] for each in lion8bit.new_state(weight)]
    return [weight], [weight.clone()], *state, torch.tensor(0.5)

def is_stepped(given):
    lion8bit.lion8bit_step(*given)
    return given[0][0][-1].item() == 0.5

torch.set_num_threads(1)  # torch's own threads do not outlive a fork
first, second = arguments(), arguments()
torch.set_num_threads(2)
assert is_stepped(first)
child = os.fork()
if not child:
    os._exit(0 if is_stepped(second) else 1)
sys.exit(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_it_is_compiled_once_with_a_word_and_runs_in_a_forked_process(tmp_path: Path) -> None:
    said = []
    for dtype in ("float32", "float32", "bfloat16"):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", SCRIPT, dtype],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stderr)
    word = "lion8bit_step is compiled for this CPU, once: it takes some seconds\n"
    assert said == [word, "", word]
