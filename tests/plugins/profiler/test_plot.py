"""The plot: what is drawn, and what is said where it cannot be."""

from __future__ import annotations

import builtins
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import CYCLE, tiny_trainer

from neaptide import ConfigError
from neaptide_plugins.profiler import SPEC, plot
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from pathlib import Path

PNG = b"\x89PNG\r\n\x1a\n"
HEADER = (
    "step,phase,moment,allocated_bytes,peak_bytes,reserved_bytes,rss_bytes,rss_peak_bytes,nvml_bytes,"
    "gpu_utilization\n"
)


@given(st.lists(st.integers(0, 2**40), max_size=300), st.integers(1, 50))
def test_thinning_keeps_the_order_and_the_peak(values: list[int], most: int) -> None:
    points = list(enumerate(values))
    thinned = plot.thinned(points, most)
    assert len(thinned) <= most
    assert sorted(thinned) == thinned
    assert max(values, default=None) == max((value for _, value in thinned), default=None)
    assert set(thinned) <= set(points)


def test_a_few_points_stay_as_they_are() -> None:
    points = [(1, 5), (2, 4), (3, 9)]
    assert points == plot.thinned(points, 3)


def test_the_bands_are_the_phases() -> None:
    phases = ["warmup", "warmup", "full", "predict", "correct", "full"]
    rows = [
        {"step": str(step), "phase": phase}
        for step, phase in zip([1, 2, 3, 4, 4, 5], phases, strict=True)
    ]
    assert [
        ("warmup", 0.5, 2.5),
        ("full", 2.5, 3.5),
        ("predict", 3.5, 4.0),
        ("correct", 3.5, 4.5),
        ("full", 4.5, 5.5),
    ] == list(plot.bands(rows))


def test_a_run_ends_in_a_plot(tmp_path: Path) -> None:
    config = {
        "phases": CYCLE,
        "run": {"dir": str(tmp_path)},
        "plugins": {"profiler": {"plot": True}},
    }
    trainer, batches = tiny_trainer(config, [SPEC, STEADY_PREDICTOR])
    with trainer:
        for batch in batches[:12]:
            trainer.step(batch)
    assert (tmp_path / "plugins/profiler/memory.png").read_bytes().startswith(PNG)


def test_a_run_without_a_step_has_no_plot(tmp_path: Path) -> None:
    trainer, _ = tiny_trainer(
        {"run": {"dir": str(tmp_path)}, "plugins": {"profiler": {"plot": True}}}, [SPEC]
    )
    trainer.close()
    assert not (tmp_path / "plugins/profiler/memory.png").exists()


def test_pyplot_is_left_alone(tmp_path: Path) -> None:
    before = set(sys.modules)
    with (tmp_path / "memory.png").open("wb") as file:
        plot.draw(HEADER + "1,full,step,1,3,4,5,6,,\n2,full,step,2,3,4,5,6,9,50\n", file)
    assert "matplotlib.pyplot" not in set(sys.modules) - before
    assert (tmp_path / "memory.png").read_bytes().startswith(PNG)


@pytest.fixture
def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    find, load = importlib.util.find_spec, builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        return None if name == "matplotlib" else find(name, *rest)

    def refuse(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return load(name, *rest)

    monkeypatch.setattr(plot, "find_spec", absent)
    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.mark.usefixtures("without_matplotlib")
def test_without_matplotlib_a_plot_is_refused_before_the_run(tmp_path: Path) -> None:
    config = {"run": {"dir": str(tmp_path / "run")}, "plugins": {"profiler": {"plot": True}}}
    with pytest.raises(ConfigError) as raised:
        tiny_trainer(config, [SPEC])
    expected = 'matplotlib is not installed: pip install "neaptide[plots]" @ plugins.profiler.plot'
    assert expected == str(raised.value)


@pytest.mark.usefixtures("without_matplotlib")
def test_without_matplotlib_everything_else_runs() -> None:
    trainer, batches = tiny_trainer({"plugins": {"profiler": {}}}, [SPEC])
    with trainer:
        trainer.step(batches[0])
    assert "full" in trainer.report("profiler")


def test_a_plot_needs_its_rows() -> None:
    with pytest.raises(ConfigError, match=r"set csv = true as well @ plugins\.profiler\.plot"):
        tiny_trainer({"plugins": {"profiler": {"plot": True, "csv": False}}}, [SPEC])
