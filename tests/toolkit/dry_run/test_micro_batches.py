"""Equal micro-batches, of a step or of a streamed block: two stand for all, in memory and time.

Only the states of random generators, which the host keeps for each piece of a block, are not all
there.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from neaptide.hooks.enabling import configured
from neaptide_toolkit.dry_run import running
from neaptide_toolkit.machine import profiles
from neaptide_toolkit.testing import kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KINDS = kinds.__name__
PIECES, LAYERS = 4, 3


def planned(
    kind: str, pieces: int = PIECES, layers: int = LAYERS, **settings: Any
) -> running.DryRun:
    streaming = {"resident": 0, "micro_batches": pieces, **settings}
    return run_of(kind, {"layer-streaming": streaming}, layers)


def run_of(
    kind: str, plugins: dict[str, Any], layers: int = LAYERS, **train: Any
) -> running.DryRun:
    config = {
        "model": {"name": f"{KINDS}:encoder", "options": {"layers": layers, "width": 64}},
        "data": {"name": f"{KINDS}:sequences", "options": {"width": 64}},
        "train": {"device": "cpu", **train},
        "plugins": plugins,
    }
    return running.dry_run(configured(config, ())[0], [profiles.load("rtx4090").rates], kind)


def test_an_optimizer_on_the_cpu_takes_nothing_of_the_device() -> None:
    update = planned("cuda", 1, optimizer_on="cpu").allocations.peaks("device")["full update"]
    weights = LAYERS * 12 * 64 * 64 * 4  # of all blocks
    assert update.kinds.get("update", 0) < weights / 10


def test_inputs_in_ram_take_nothing_of_the_device() -> None:
    more, growth = 4, {}
    for inputs in ("device", "host"):
        peaks = []
        for layers in (LAYERS, LAYERS + more):
            found = planned("cuda", layers=layers, inputs=inputs)
            peaks.append(found.allocations.peaks("device")["full forward"].bytes)
        growth[inputs] = peaks[1] - peaks[0]
    rows = next(iter(kinds.sequences(width=64).train)).nbytes
    assert growth["device"] >= more * rows
    assert growth["host"] < rows


def every(run: Callable[[int], Any], count: int) -> list[Any]:
    return [run(part) for part in range(count)]


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("settings", [{}, {"update": "in_backward", "inputs": "host"}])
def test_memory_and_time_are_those_of_all_pieces(
    kind: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(kind, **settings)  # what is made once in a process
    two = planned(kind, **settings)
    monkeypatch.setattr(running, "two_calls", lambda *_: every)
    whole = planned(kind, **settings)
    states = LAYERS * (PIECES - 2) * torch.get_rng_state().nbytes if kind == "cpu" else 0
    for place in ("device", "pages"):
        found, peaks = (one.allocations.peaks(place) for one in (two, whole))
        assert {key: peak.bytes for key, peak in found.items()} == {
            key: pytest.approx(peak.bytes, abs=states) for key, peak in peaks.items()
        }
    if kind == "cuda":
        assert two.allocations.reserved() == whole.allocations.reserved()
    assert two.times[0].seconds == pytest.approx(whole.times[0].seconds, rel=1e-6)


def test_unequal_pieces_all_run(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*_: Any) -> Any:
        return lambda run, count: calls.append(count) or every(run, count)

    monkeypatch.setattr(running, "two_calls", counted)
    planned("cpu", 3)
    assert [] == calls
    planned("cpu")
    assert {PIECES} == set(calls)


@contextmanager
def every_one(*_: Any) -> Iterator[None]:
    yield


LEFT = 1024
"""Bytes that may differ: sums of losses, and what is left for a moment when the next one begins."""
BETWEEN = 32 * 1024
"""Bytes that may differ between two passes: a small tensor is sometimes freed before, sometimes
after."""
ACCUMULATED = {
    "in one step": {"gradient-accumulation": {"steps": PIECES}},
    "clipped": {"gradient-accumulation": {"steps": PIECES}, "mixed-precision": {}},
    "recomputed": {"gradient-accumulation": {"steps": PIECES}, "activation-checkpointing": {}},
    "streamed": {"gradient-accumulation": {"steps": PIECES}, "layer-streaming": {"resident": 0}},
    "over steps": {"gradient-accumulation": {"steps": 2, "across_steps": True}},
}


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("plugins", ACCUMULATED.values(), ids=ACCUMULATED.keys())
def test_memory_and_time_are_those_of_all_micro_batches(
    kind: str, plugins: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    clipped = {"clip_norm": 1.0} if "mixed-precision" in plugins else {}
    run_of(kind, plugins, **clipped)  # what is made once in a process
    two = run_of(kind, plugins, **clipped)
    monkeypatch.setattr(running, "two_micro_batches", every_one)
    whole = run_of(kind, plugins, **clipped)
    for place in ("device", "pages"):
        found, peaks = (one.allocations.peaks(place) for one in (two, whole))
        assert {key: peak.bytes for key, peak in found.items()} == {
            key: pytest.approx(peak.bytes, abs=BETWEEN if key == "full" else LEFT)
            for key, peak in peaks.items()
        }
    if kind == "cuda":
        assert two.allocations.reserved() == whole.allocations.reserved()
    assert two.times[0].seconds == pytest.approx(
        whole.times[0].seconds, rel=5e-3
    )  # a GPU runs behind the host
    assert two.tokens == whole.tokens


@pytest.mark.parametrize(("pieces", "run"), [(2, 2), (3, 3), (4, 2), (8, 2)])
def test_micro_batches_all_run_if_they_are_few_or_unequal(
    pieces: int, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    forward = nn.TransformerEncoder.forward

    def counted(*given: Any, **named: Any) -> Any:
        calls.append(0)
        return forward(*given, **named)

    monkeypatch.setattr(nn.TransformerEncoder, "forward", counted)
    run_of("cpu", {"gradient-accumulation": {"steps": pieces}})
    assert len(calls) == 3 * run + 1  # one evaluates
