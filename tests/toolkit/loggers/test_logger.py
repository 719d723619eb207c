"""What every logger gets of a run, and what of it a tool has already."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import torch

from neaptide import ConfigError, HybridTrainer, PluginSpec
from neaptide.io.folder import Folder
from neaptide_toolkit.loggers import LoggerPlugin, WrittenPoints
from neaptide_toolkit.loggers import testing as loggers
from neaptide_toolkit.testing import tiny_task
from neaptide_toolkit.testing.tiny import tiny_loss

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from neaptide import Run
    from neaptide_toolkit.loggers import LogSink

GOT: list[tuple[Any, ...]] = []


class Log:
    def __init__(self) -> None:
        self.said: dict[str, Any] = {}

    def info(self, event: str, **values: Any) -> None:
        self.said[event] = values


LOG = Log()


@attrs.frozen(kw_only=True)
class EveryUpdate:
    every: int = 1


class ListSink:
    def begin(self, step: int) -> None:
        GOT.append(("begin", step))

    def phase(self, step: int, name: str) -> None:
        GOT.append(("phase", step, name))

    def numbers(self, step: int, values: Any) -> None:
        GOT.extend((name, step, value) for name, value in values.items())

    def close(self, error: BaseException | None) -> None:
        GOT.append(("close", error))


class ToList(LoggerPlugin[EveryUpdate]):
    """Draws random numbers as tools do that invent names."""

    def prepare(self, run: Run) -> Callable[[], LogSink]:
        random.random()
        return self.opened

    def opened(self) -> LogSink:
        random.random()
        torch.rand(1)
        return ListSink()


SPEC = PluginSpec(
    name="to-list", load=f"{__name__}:ToList", config=EveryUpdate, summary="-", observer=True
)


def run(directory: Path, plugins: list[PluginSpec]) -> str:
    GOT.clear()
    random.seed(0)
    task = tiny_task(0)
    config = {"run": {"dir": str(directory)}, "train": {"steps": 6}}
    given = {"loss_fn": tiny_loss, "plugins": plugins, "config": config}
    with HybridTrainer(task.model, task.optimizer, **given) as trainer:
        trainer.fit(task.batches[:6], validation=task.batches[6:8])
        return str(random.random()) + str(torch.rand(1))


def test_a_logger_gets_what_the_records_have(tmp_path: Path) -> None:
    run(tmp_path, [SPEC])
    curves: loggers.Curves = {}
    for name, *point in GOT:
        if name not in ("begin", "phase", "close"):
            curves.setdefault(name, []).append((point[0], point[1]))
    expected = loggers.curves_of(tmp_path)
    assert {"train/loss", "eval/loss", "train/learning_rate"} <= set(expected)
    assert expected == {name: curves[name] for name in expected}
    assert [("begin", 0), ("phase", 1, "full")] == [each for each in GOT if len(str(each)) < 22][:2]
    assert ("close", None) == GOT[-1]


def test_what_a_tool_draws_changes_no_random_number_of_the_run(tmp_path: Path) -> None:
    assert run(tmp_path / "without", []) == run(tmp_path / "with", [SPEC])


# --- what a tool has already ----------------------------------------------------------------------


def test_points_that_a_tool_has_are_left_out_after_a_resume(tmp_path: Path) -> None:
    first = WrittenPoints(Folder(tmp_path), LOG)
    assert first.run is None
    first.start("abc")
    first.begin(0)
    for step in (1, 2, 3):
        values = {"loss": 0.5, **({"eval": 1.0} if step == 2 else {})}
        assert values == first.new(step, values)
        first.add(step, values)
    again = WrittenPoints(Folder(tmp_path), LOG)  # the first was killed: it did not close
    assert ("abc", 3) == (again.run, again.rows)
    again.start("abc")
    assert {"loss": 1.0} == again.new(1, {"loss": 1.0}), "nothing is left out before `begin`"
    again.begin(1)
    assert {"tool_run": "abc", "first": 2, "last": 3} == LOG.said.pop("logger.points_kept")
    assert {} == again.new(2, {"loss": 1.0, "eval": 1.0})
    assert {"eval": 1.0} == again.new(3, {"loss": 1.0, "eval": 1.0})
    assert {"loss": 1.0} == again.new(4, {"loss": 1.0})
    again.close()
    first.close()


def test_another_run_of_the_tool_has_no_points_and_leaves_a_whole_file(tmp_path: Path) -> None:
    first = WrittenPoints(Folder(tmp_path), LOG)
    first.start("a" * 72)
    first.add(5, {"loss": 1.0, "eval": 1.0})
    first.close()
    other = WrittenPoints(Folder(tmp_path), LOG)
    other.start("b")
    other.begin(5)
    assert {"loss": 2.0} == other.new(5, {"loss": 2.0})
    other.close()
    again = WrittenPoints(Folder(tmp_path), LOG)
    assert ("b", 0) == (again.run, again.rows)


def test_without_a_folder_nothing_is_kept() -> None:
    written = WrittenPoints(None, LOG)
    written.start("abc")
    written.add(1, {"loss": 1.0})
    assert ("abc", 1) == (written.run, written.rows)
    written.close()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": 3}', '{"run": "a", "rows": 1}'])
def test_a_damaged_file_is_told_with_the_way_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"run.json is damaged; remove it to log to a new run"):
        WrittenPoints(Folder(tmp_path), LOG)


def test_a_short_run_can_be_stopped_and_resumed(tmp_path: Path) -> None:
    whole = loggers.short_run(tmp_path / "whole", {})
    with pytest.raises(loggers.StoppedError):
        loggers.short_run(tmp_path / "run", {}, stop_after=7)
    assert whole["digest"] == loggers.short_run(tmp_path / "run", {}, resume="auto")["digest"]
    assert loggers.curves_of(tmp_path / "whole") == loggers.curves_of(tmp_path / "run")
    assert whole["jumps"] > 0
