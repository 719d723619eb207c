"""The trace: what is named, how it nests, which updates it covers, and that it always ends."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import CYCLE, digest_after, plugin_with, stranger, tiny_trainer

from neaptide import hookimpl
from neaptide_plugins.profiler import SPEC
from neaptide_plugins.profiler.timeline import PHASES, TraceTimeline
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]


def config_of(directory: Path, **settings: Any) -> dict[str, Any]:
    plugins = {"profiler": settings, "ema": {}, "gradient-accumulation": {"steps": 2}}
    return {"run": {"dir": str(directory)}, "phases": CYCLE, "plugins": plugins}


def run(directory: Path, steps: int = 12, plugins: Any = (), **settings: Any) -> Any:
    """Return the closed trainer of a traced run through all phases, with a jump before update 7."""
    trainer, batches = tiny_trainer(config_of(directory, **settings), [STEADY_PREDICTOR, *plugins])
    with trainer:
        for batch in batches[:steps]:
            trainer.step(batch)
    return trainer


def trace_of(directory: Path) -> list[Event]:
    (path,) = (directory / "plugins" / "profiler").glob("trace-*.json")
    events: list[Event] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return events


def spans_of(events: list[Event]) -> list[Event]:
    return [event for event in events if event["ph"] == "X"]


def names(events: list[Event], category: str) -> list[str]:
    return [event["name"] for event in events if event.get("cat") == category]


def assert_nested(events: list[Event]) -> None:
    """Of two spans on one thread, one holds the other or they do not touch."""
    tracks: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        tracks[event["pid"], event["tid"]].append(event)
    slack = 1e-3  # times are floats of microseconds
    for track in tracks.values():
        held: list[float] = []
        for event in sorted(track, key=lambda event: (event["ts"], -event["dur"])):
            while held and held[-1] <= event["ts"] + slack:
                held.pop()
            end = event["ts"] + event["dur"]
            assert not held or end <= held[-1] + slack, event
            held.append(end)


def parents(events: list[Event], name: str) -> set[str]:
    """Return the names of the spans that hold one called `name`."""
    return {
        outer["name"]
        for inner in events
        if inner["name"] == name
        for outer in events
        if outer is not inner
        and outer["tid"] == inner["tid"]
        and outer["ts"] <= inner["ts"]
        and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    }


def test_steps_phases_hooks_and_plugins_are_named_and_nest(tmp_path: Path) -> None:
    run(tmp_path, trace=[5, 8])
    spans = spans_of(trace_of(tmp_path))
    expected = ["step 5 full", "step 6 full", "step 7 predict", "step 7 correct", "step 8 correct"]
    assert expected == names(spans, "step")
    assert ["full", "predict", "correct"] == names(spans, "phase")
    assert {
        "around_train_step",
        "around_correct",
        "around_forward",
        "around_backward",
        "around_optimizer_step",
        "around_predict",
        "around_propose",
    } == set(names(spans, "core"))
    assert {"ema: around_train_step"} <= set(names(spans, "ema"))
    assert "gradient-accumulation: plan_micro_batches" in names(spans, "gradient-accumulation")
    assert "steady-predictor: propose_update" in names(spans, "steady-predictor")
    assert 4 * 2 == names(spans, "profiler").count("profiler: after_backward")
    assert 4 == names(spans, "profiler").count("profiler: after_step")
    assert all(span["dur"] > 0 and span["ts"] >= 0 for span in spans)
    assert_nested(spans)
    assert {"step 7 predict", "around_predict", "around_propose"} == parents(
        spans, "steady-predictor: propose_update"
    )
    assert {"step 7 correct", "step 8 correct", "around_train_step"} <= parents(
        spans, "around_correct"
    )


def test_the_phases_have_a_track_of_their_own(tmp_path: Path) -> None:
    run(tmp_path, trace=[5, 8])
    events = trace_of(tmp_path)
    phases = [event for event in spans_of(events) if event["cat"] == "phase"]
    assert {PHASES} == {event["tid"] for event in phases}
    assert PHASES not in {e["tid"] for e in spans_of(events) if e["cat"] != "phase"}
    assert ["phases"] == [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    for one, following in pairwise(phases):
        assert one["ts"] + one["dur"] <= following["ts"]


def test_each_sample_is_a_point_of_the_counter(tmp_path: Path) -> None:
    run(tmp_path, trace=[5, 8])
    counters = [event for event in trace_of(tmp_path) if event["ph"] == "C"]
    assert 4 * (2 + 2 + 1) + 1 == len(counters)
    assert all(counter["args"]["host"] > 1 for counter in counters)


def test_the_window_may_be_one_update_or_begin_with_the_run(tmp_path: Path) -> None:
    for first, last, expected in (
        (1, 1, ["step 1 warmup"]),
        (7, 7, ["step 7 predict", "step 7 correct"]),
        (12, 99, ["step 12 full"]),
    ):
        directory = tmp_path / str(first)
        run(directory, trace=[first, last])
        assert expected == names(trace_of(directory), "step")


def test_a_window_nobody_reaches_leaves_no_file_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = run(tmp_path, trace=[13, 20])
    assert 1 == caplog.text.count("no trace was written: the run ended before update 13")
    assert [] == list((tmp_path / "plugins" / "profiler").glob("trace*"))
    assert "trace" not in trainer.report("profiler")


def test_the_report_names_the_file(tmp_path: Path) -> None:
    report = run(tmp_path, trace=[5, 8]).report("profiler")
    assert "trace: trace-00000005-00000008.json (open in ui.perfetto.dev)" in report


def test_deferred_steps_of_the_last_update_are_in_the_window(tmp_path: Path) -> None:
    config = config_of(tmp_path, trace=[2, 2])
    config["plugins"]["gradient-accumulation"] = {"steps": 3, "across_steps": True}
    trainer, batches = tiny_trainer(config)
    with trainer:
        for batch in batches[:9]:
            trainer.step(batch)
    assert ["step 2 warmup"] * 3 == names(trace_of(tmp_path), "step")


@pytest.mark.parametrize("settings", [{}, {"trace_ops": True}], ids=["spans", "operators"])
def test_a_crash_inside_the_window_leaves_a_whole_trace(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    def after_backward(self: Any, step: int) -> None:
        if step == 5:
            msg = "the crash"
            raise ValueError(msg)

    crashing = stranger(plugin_with(after_backward=hookimpl(after_backward)), "crashing")
    with pytest.raises(ValueError, match="the crash"):
        run(tmp_path, plugins=[crashing], trace=[5, 8], **settings)
    spans = spans_of(trace_of(tmp_path))
    assert {"step 5 full", "step 6 full", "crashing: after_backward"} <= {
        span["name"] for span in spans
    }
    assert_nested(spans)
    assert not torch.autograd._profiler_enabled()


def test_a_resumed_run_traces_what_is_left_of_the_window(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run", trace=[3, 6])
    trainer, batches = tiny_trainer(config)
    with trainer:
        for batch in batches[:4]:
            trainer.step(batch)
        trainer.save(tmp_path / "saved")
    trainer, batches = tiny_trainer(config)
    with trainer:
        trainer.load(tmp_path / "saved")
        for batch in batches[4:8]:
            trainer.step(batch)
    files = sorted((tmp_path / "run" / "plugins" / "profiler").glob("trace-*"))
    assert ["trace-00000003-00000006.json", "trace-00000005-00000006.json"] == [
        path.name for path in files
    ]
    steps = names(json.loads(files[1].read_text(encoding="utf-8"))["traceEvents"], "step")
    assert ["step 5 full", "step 6 full"] == steps


def test_nothing_listens_outside_the_window(tmp_path: Path) -> None:
    listening = []
    trainer, batches = tiny_trainer(config_of(tmp_path, trace=[3, 4]))
    with trainer:
        for batch in batches[:6]:
            listening.append(trainer.run.timeline.opener is not None)
            trainer.step(batch)
    assert [False, False, True, True, True, False] == listening  # ended as update 5 begins


def test_somebody_elses_timeline_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer, batches = tiny_trainer(config_of(tmp_path, trace=[2, 3]))
    timeline = TraceTimeline()
    with trainer:
        end = trainer.run.timeline.listen(timeline.span)
        for batch in batches[:4]:
            trainer.step(batch)
        end()
    assert 4 == len(names(timeline.events(0), "step"))
    assert "being recorded already" in caplog.text
    assert 12 <= trainer.report("profiler").count("\n") + 8


def test_a_trace_that_cannot_be_written_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer, batches = tiny_trainer(config_of(tmp_path, trace=[2, 3]), [STEADY_PREDICTOR])
    with trainer:
        for batch in batches[:12]:
            trainer.step(batch)
            in_the_way = tmp_path / "plugins/profiler/trace-00000002-00000003.json"
            in_the_way.mkdir(parents=True, exist_ok=True)
    assert "the trace could not be written: IsADirectoryError" in caplog.text
    assert 12 == trainer.state.step
    assert "host" in trainer.report("profiler")


@pytest.mark.parametrize("settings", [{}, {"trace_ops": True}], ids=["spans", "operators"])
def test_a_profiler_that_fails_within_the_window_stops_recording(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    trainer, batches = tiny_trainer(config_of(tmp_path, trace=[2, 99], **settings))
    with trainer:
        for batch in batches[:3]:
            trainer.step(batch)
        trainer.hooks.plugins["profiler"]._session._rows._file.close()  # the disk refuses
        trainer.step(batches[3])
        assert None is trainer.run.timeline.opener
        assert not torch.autograd._profiler_enabled()
        trainer.step(batches[4])


# -- with torch's operators ---------------------------------------------------------------------


def test_operators_lie_below_the_spans_that_launch_them(tmp_path: Path) -> None:
    run(tmp_path, trace=[6, 7], trace_ops=True)
    events = trace_of(tmp_path)
    spans = spans_of(events)
    named = [span for span in spans if span["cat"] == "user_annotation"]
    operators = [span for span in spans if span["cat"] == "cpu_op"]
    assert {"step 6 full", "step 7 predict", "step 7 correct"} == {
        span["name"] for span in named if span["name"].startswith("step ")
    }
    assert {"around_forward", "ema: around_train_step"} <= {span["name"] for span in named}
    assert {"step 6 full", "around_train_step", "around_forward", "aten::linear"} <= parents(
        named + operators, "aten::addmm"
    )
    phases = [span for span in spans if span["cat"] == "phase"]
    assert ["full", "predict", "correct"] == [phase["name"] for phase in phases]
    step = next(span for span in named if span["name"] == "step 7 predict")
    assert phases[1]["ts"] <= step["ts"]  # two clocks, one scale
    assert step["ts"] + step["dur"] <= phases[1]["ts"] + phases[1]["dur"]
    assert not torch.autograd._profiler_enabled()


def test_a_profile_of_the_user_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run(tmp_path, trace=[6, 7], trace_ops=True)
    assert "aten::addmm" in {event.key for event in profile.key_averages()}
    assert "torch.profiler is recording already" in caplog.text
    assert "step 6 full" in names(trace_of(tmp_path), "step")


@pytest.mark.parametrize("settings", [{}, {"trace_ops": True}], ids=["spans", "operators"])
def test_tracing_changes_nothing_of_the_run(tmp_path: Path, settings: dict[str, Any]) -> None:
    plain = config_of(tmp_path / "plain")
    traced = config_of(tmp_path / "traced", trace=[2, 9], **settings)
    assert digest_after(12, plain, [STEADY_PREDICTOR]) == digest_after(
        12, traced, [STEADY_PREDICTOR]
    )


# -- the timeline alone -------------------------------------------------------------------------


def test_what_is_open_at_the_end_ends_there() -> None:
    timeline = TraceTimeline()
    outer, inner = timeline.span("outer", "core"), timeline.span("inner", "core")
    outer.__enter__()
    inner.__enter__()
    timeline.phase("full")
    timeline.finish()
    inner.__exit__(None, None, None)
    outer.__exit__(None, None, None)
    timeline.counter("late", {"host": 1.0})
    spans = spans_of(timeline.events(timeline.started))
    assert ["outer", "inner", "full"] == [span["name"] for span in spans]
    assert_nested(spans)


def test_each_thread_has_its_track() -> None:
    timeline = TraceTimeline()

    def work() -> None:
        with timeline.span("theirs", "core"):
            pass

    with timeline.span("ours", "core"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    timeline.finish()
    ours, theirs = spans_of(timeline.events(timeline.started))
    assert (threading.get_native_id(), "theirs") == (ours["tid"], theirs["name"])
    assert ours["tid"] != theirs["tid"]


def test_a_window_too_long_drops_spans_and_says_how_many() -> None:
    timeline = TraceTimeline(limit=3)
    for _ in range(5):
        with timeline.span("one", "core"):
            pass
    timeline.finish()
    assert (3, 2) == (len(spans_of(timeline.events(0))), timeline.dropped)


@pytest.mark.parametrize("window", [[1], [0, 3], [5, 4], [1, 2, 3]])
def test_a_window_is_two_updates_in_order(window: list[int]) -> None:
    with pytest.raises(ValueError, match=r"trace.*first <= last"):
        tiny_trainer({"plugins": {"profiler": {"trace": window}}}, [SPEC])
