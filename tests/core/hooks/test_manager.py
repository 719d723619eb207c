"""Plugins that are wrong in every way, and what a run makes of them."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import torch
from support import (
    CYCLE,
    digest_after,
    plugin_with,
    same_tensors,
    stranger,
    tensors_of,
    tiny_trainer,
)

from neaptide import ConfigError, HybridTrainer, PluginError, hookimpl
from neaptide.hooks import hookspecs
from neaptide.hooks.registry import load_class
from neaptide_toolkit.testing import tiny_task
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR, tiny_loss

if TYPE_CHECKING:
    from pathlib import Path

    from neaptide import PluginSpec

# The doctor asks `diagnose` without a run: it has tests of its own.
HOOKS = sorted(
    name
    for name, value in vars(hookspecs).items()
    if hasattr(value, "neaptide_spec") and name != "diagnose"
)
AROUND = [name for name in HOOKS if name.startswith("around_")]
FIRST = [name for name in HOOKS if getattr(hookspecs, name).neaptide_spec["firstresult"]]
TEARDOWN = ["on_run_end"]
NOTIFICATIONS = [
    "after_backward",
    "after_forward",
    "after_step",
    "before_forward",
    "convert_model",
    "on_metrics",
    "on_phase_enter",
    "on_phase_exit",
    "on_record",
    "on_run_start",
    "register_kernels",
]


class BoomError(Exception):
    """A stranger's own error."""


def implementing(hook: str, body: Any) -> dict[str, Any]:
    """Return a method that implements `hook` by calling `body(self)`."""

    def implementation(self: Any) -> Any:
        return body(self)

    implementation.__name__ = hook
    return {hook: hookimpl(implementation)}


def raising(hook: str, error: Any = BoomError, **manifest: Any) -> PluginSpec:
    """Return a plugin that raises in `hook`."""

    def body(self: Any) -> Any:
        raise error

    return stranger(plugin_with(**implementing(hook, body)), "broken", **manifest)


def returning(hook: str, value: Any, **manifest: Any) -> PluginSpec:
    """Return a plugin that answers `hook` with `value`."""
    return stranger(plugin_with(**implementing(hook, lambda self: value)), "broken", **manifest)


def witness(seen: list[Any]) -> PluginSpec:
    """Return a plugin that patches the model, and writes down that it undid that."""

    @hookimpl
    def convert_model(self: Any, model: Any) -> None:
        self.model, self.forward = model, model.forward
        model.forward = partial(self.forward)

    @hookimpl
    def on_run_end(self: Any, error: BaseException | None) -> None:
        seen.append(error)
        if getattr(self, "model", None) is not None:
            del self.model.forward

    members = {"convert_model": convert_model, "on_run_end": on_run_end}
    return stranger(plugin_with(**members), "witness")


def whole_run(directory: Path, plugins: list[Any], task: Any) -> None:
    """Call every hook there is: assembly, all phases, evaluation, saving, estimates, the end."""
    config = {
        "phases": CYCLE,
        "run": {"dir": str(directory), "log_every": 1},
        "train": {"steps": 10, "clip_norm": 1.0},
    }
    with HybridTrainer(
        task.model, None, loss_fn=tiny_loss, config=config, plugins=plugins
    ) as trainer:
        for batch in task.batches[:10]:
            trainer.step(batch)
        trainer.evaluate(task.batches[10:12])
        trainer.save(directory / "saved")
        trainer.estimate_memory("full")


# Asked only by runs from a config; they have tests of their own below.
BUILDERS = {"build_model", "build_data"}
DYNAMICS = {"forecast": {"claims": {"dynamics"}}, "propose_update": {"claims": {"predictor"}}}


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("hook", [hook for hook in HOOKS if hook not in BUILDERS])
def test_an_exception_keeps_its_type_and_names_the_plugin(
    tmp_path: Path, hook: str, *, first: bool
) -> None:
    task, seen = tiny_task(), []
    broken = raising(hook, **DYNAMICS.get(hook, {}))
    plugins = [broken, witness(seen)] if first else [witness(seen), broken]
    if hook != "propose_update":
        plugins.append(STEADY_PREDICTOR)
    if hook == "on_run_end":
        with pytest.raises(ExceptionGroup) as group:
            whole_run(tmp_path / "run", plugins, task)
        (error,) = group.value.exceptions
    else:
        with pytest.raises(BoomError) as caught:
            whole_run(tmp_path / "run", plugins, task)
        error = caught.value
    assert isinstance(error, BoomError)
    assert f"raised by plugin 'broken' in hook {hook!r}" in error.__notes__
    assert 1 == len([note for note in error.__notes__ if note.startswith("raised by")])
    assert [None if hook == "on_run_end" else error] == seen
    # The model is usable, and so is the run directory.
    task.model.train()
    tiny_loss(task.model, task.batches[0]).sum.backward()
    assert "forward" not in vars(task.model)
    task = tiny_task()
    whole_run(tmp_path / "run", [STEADY_PREDICTOR], task)


@pytest.mark.parametrize("hook", AROUND)
def test_an_exception_inside_a_middleware_names_the_plugin(tmp_path: Path, hook: str) -> None:
    def middleware(following: Any, **arguments: Any) -> Any:
        following(**arguments)
        raise BoomError

    with pytest.raises(BoomError) as caught:
        whole_run(tmp_path / "run", [returning(hook, middleware), STEADY_PREDICTOR], tiny_task())
    assert [f"raised by plugin 'broken' in hook {hook!r}"] == caught.value.__notes__


def test_a_keyboard_interrupt_stays_one(tmp_path: Path) -> None:
    task, seen = tiny_task(), []
    with pytest.raises(KeyboardInterrupt) as caught:
        whole_run(
            tmp_path / "run", [raising("after_forward", KeyboardInterrupt), witness(seen)], task
        )
    assert [caught.value] == seen
    assert "forward" not in vars(task.model)


@pytest.mark.parametrize(("hook", "section"), [("build_model", "model"), ("build_data", "data")])
def test_a_builder_that_raises_is_named(hook: str, section: str) -> None:
    from neaptide.run import assembly

    broken = raising(hook, schemes={f"{section}:broken"})
    config = (
        {"model": {"name": "broken:thing"}}
        if section == "model"
        else {
            "model": {"name": "builtin:byte-gpt", "options": {"layers": 1, "width": 8, "heads": 1}},
            "data": {"name": "broken:thing"},
        }
    )
    with (
        pytest.raises(BoomError) as caught,
        HybridTrainer.from_config(config, plugins=[broken]) as trainer,
    ):
        assembly.build_data(trainer.config, trainer.hooks)
    assert f"raised by plugin 'broken' in hook {hook!r}" in caught.value.__notes__


EXPECTED = {
    "build_model": "Module or Task",
    "build_data": "Data",
    "configure_optimizer": "Optimizer",
    "provide_parameters": "ParameterStore",
    "select_phase": "Phase",
    "propose_update": "Update",
    "forecast": "Forecast",
    "plan_micro_batches": "list or tuple",
    "estimate_memory": "Ledger",
    "collect_metrics": "Mapping",
    **dict.fromkeys([*NOTIFICATIONS], "None"),
}


@pytest.mark.parametrize("hook", [hook for hook in EXPECTED if hook not in BUILDERS])
def test_a_wrong_answer_names_plugin_hook_and_types(tmp_path: Path, hook: str) -> None:
    broken = returning(hook, 7, **DYNAMICS.get(hook, {}))
    plugins = [broken] if hook == "propose_update" else [broken, STEADY_PREDICTOR]
    with pytest.raises(PluginError) as caught:
        whole_run(tmp_path / "run", plugins, tiny_task())
    expected = f"plugin 'broken' must return {EXPECTED[hook]} from {hook!r} (got int)"
    assert expected == str(caught.value)


@pytest.mark.parametrize("hook", AROUND)
def test_what_is_no_middleware_is_refused(tmp_path: Path, hook: str) -> None:
    with pytest.raises(PluginError) as caught:
        whole_run(tmp_path / "run", [returning(hook, 7)], tiny_task())
    expected = (
        f"plugin 'broken' must return a function f(next, **arguments) or None from {hook!r} (got 7)"
    )
    assert expected == str(caught.value)


def test_every_hook_has_an_expected_answer() -> None:
    assert set(HOOKS) == {*EXPECTED, *AROUND, *TEARDOWN}


def refusal(cls: type[Any], **manifest: Any) -> str:
    """Return why the plugin class is refused when a trainer is made."""
    task = tiny_task()
    with pytest.raises(PluginError) as caught:
        HybridTrainer(task.model, task.optimizer, plugins=[stranger(cls, "broken", **manifest)])
    return str(caught.value)


def test_a_misspelled_hook_is_refused_with_a_suggestion() -> None:
    cls = plugin_with(**implementing("after_stepp", lambda self: None))
    assert (
        "plugin 'broken': there is no hook 'after_stepp' (did you mean 'after_step'?)"
    ) == refusal(cls)


def test_a_hook_without_its_marker_is_refused() -> None:
    cls = plugin_with(after_step=lambda self: None)
    assert "plugin 'broken': 'after_step' is a hook but lacks the @hookimpl marker" == refusal(cls)


def test_a_wrong_argument_is_refused_with_a_suggestion() -> None:
    @hookimpl
    def after_step(self: Any, results: Any) -> None:
        pass

    assert (
        "plugin 'broken': hook 'after_step' has no argument 'results' (did you mean 'result'?); "
        "it has phase, result, step"
    ) == refusal(plugin_with(after_step=after_step))


@pytest.mark.parametrize("kind", ["wrapper", "hookwrapper"])
def test_a_pluggy_wrapper_is_refused(kind: str) -> None:
    @hookimpl(**{kind: True})
    def after_step(self: Any) -> Any:
        yield

    assert (
        "plugin 'broken': 'after_step' is a pluggy wrapper; use an around_* hook instead"
    ) == refusal(plugin_with(after_step=after_step))


@pytest.mark.parametrize("hook", [*AROUND, *FIRST])
def test_an_observer_decides_nothing(hook: str) -> None:
    cls = plugin_with(**implementing(hook, lambda self: None))
    assert f"plugin 'broken' is an observer; it cannot implement {hook!r}" == refusal(
        cls, observer=True
    )


def test_a_class_that_is_missing_or_no_plugin_is_refused() -> None:
    spec = stranger(plugin_with(), "broken")
    module = spec.load.partition(":")[0]
    for load, what in (
        (f"{module}:Missing", "AttributeError"),
        ("no_such_module_at_all:Thing", "ModuleNotFoundError"),
        ("collections:OrderedDict", "must be a subclass of neaptide.Plugin"),
        ("math:pi", "must be a subclass of neaptide.Plugin"),
    ):
        with pytest.raises(PluginError) as caught:
            load_class(attrs.evolve(spec, load=load))
        assert str(caught.value).startswith("plugin 'broken': ")
        assert f"{load!r} " in str(caught.value)
        assert what in str(caught.value)


def test_a_class_that_cannot_be_created_is_named() -> None:
    def explode(self: Any) -> None:
        raise BoomError

    cls = plugin_with(__attrs_post_init__=explode)
    cls.__init__ = lambda self, config: explode(self)
    task = tiny_task()
    with pytest.raises(BoomError) as caught:
        HybridTrainer(task.model, task.optimizer, plugins=[stranger(cls, "broken")])
    assert ["raised by plugin 'broken' while it was created"] == caught.value.__notes__


OBSERVABLE = [hook for hook in HOOKS if hook not in {*AROUND, *FIRST}]


@pytest.mark.parametrize(
    ("hook", "answer"),
    [
        *((hook, "raises") for hook in OBSERVABLE),
        *((hook, "nonsense") for hook in OBSERVABLE if hook not in TEARDOWN),
    ],
)
def test_a_failing_observer_is_removed_and_training_does_not_notice(
    tmp_path: Path, hook: str, answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = tiny_task()
    whole_run(tmp_path / "expected", [STEADY_PREDICTOR], expected)
    make = raising if answer == "raises" else lambda hook, **more: returning(hook, 7, **more)
    task = tiny_task()
    whole_run(tmp_path / "run", [make(hook, observer=True), STEADY_PREDICTOR], task)
    assert same_tensors(tensors_of(expected.model), tensors_of(task.model))
    assert 1 == caplog.text.count("plugin.quarantined")
    assert f"plugin=broken hook={hook}" in caplog.text


def test_a_removed_observer_is_asked_once_more_to_clean_up() -> None:
    calls: list[str] = []

    def fail(self: Any) -> None:
        calls.append("after_step")
        raise BoomError

    members = {
        **implementing("after_step", fail),
        **implementing("before_forward", lambda self: calls.append("before_forward")),
        **implementing("on_run_end", lambda self: calls.append("on_run_end")),
    }
    digest_after(3, plugins=[stranger(plugin_with(**members), "broken", observer=True)])
    assert ["before_forward", "after_step", "on_run_end"] == calls


def test_an_observer_that_fails_everywhere_from_a_step_on_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steps: list[int] = []

    @hookimpl
    def after_step(self: Any, step: int) -> None:
        steps.append(step)
        if step >= 3:
            raise BoomError

    def fail(self: Any) -> None:
        if len(steps) >= 3:
            raise BoomError

    members = {"after_step": after_step}
    for hook in (*OBSERVABLE, *TEARDOWN):
        if hook not in {"after_step", "convert_model", "estimate_memory"}:
            members |= implementing(hook, fail)
    expected = tiny_task()
    whole_run(tmp_path / "expected", [STEADY_PREDICTOR], expected)
    task = tiny_task()
    broken = stranger(plugin_with(**members), "broken", observer=True)
    whole_run(tmp_path / "run", [broken, STEADY_PREDICTOR], task)
    assert same_tensors(tensors_of(expected.model), tensors_of(task.model))
    assert [1, 2, 3] == steps
    assert 1 == caplog.text.count("plugin.quarantined")
    events = (tmp_path / "run/events.jsonl").read_text(encoding="utf-8")
    assert (1, 1) == (events.count("plugin.quarantined"), events.count("plugin.teardown_failed"))


def test_an_observer_that_cannot_be_as_configured_stops_the_run_before_training() -> None:
    refusing = raising("on_run_start", ConfigError("no @ plugins.broken"), observer=True)
    with pytest.raises(ConfigError) as caught:
        digest_after(1, plugins=[refusing])
    assert "no @ plugins.broken" == str(caught.value)


def test_records_and_metrics_come_without_a_run_directory_too(tmp_path: Path) -> None:
    def listened(config: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        records: list[Any] = []
        lines: list[Any] = []

        @hookimpl
        def on_record(self: Any, record: Any) -> None:
            records.append((record.step, record.phase, record.loss, record.was_predicted))

        @hookimpl
        def on_metrics(self: Any, step: int, phase: Any, metrics: Any) -> None:
            lines.append((step, phase.name, metrics))

        members = {"on_record": on_record, "on_metrics": on_metrics}
        listener = stranger(plugin_with(**members), "listener", observer=True)
        run = {"log_every": 3, **config}
        table = {"phases": CYCLE, "run": run, "train": {"steps": 10}}
        trainer, batches = tiny_trainer(table, [listener, STEADY_PREDICTOR])
        with trainer:
            trainer.fit(batches, validation=batches[:1])
        return records, lines

    records, lines = listened({})
    assert (records, lines) == listened({"dir": str(tmp_path)})
    rows = (tmp_path / "steps.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert [row.split(",")[:4] for row in rows] == [
        [str(step), phase, str(loss), str(jump).lower()] for step, phase, loss, jump in records
    ]
    assert sum(jump for *_, jump in records) > 0
    written = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert list(map(json.loads, written)) == [
        {"step": step, "phase": phase, **metrics} for step, phase, metrics in lines
    ]
    assert {"val_loss"} == lines[-1][2].keys()
    assert all("lr" in metrics for _, _, metrics in lines[:-1])


def test_hooks_run_in_resolved_order_and_end_in_reverse() -> None:
    calls: list[str] = []

    def named(name: str, **manifest: Any) -> PluginSpec:
        members = {
            **implementing("on_run_start", lambda self: calls.append(f"start {name}")),
            **implementing("after_step", lambda self: calls.append(f"step {name}")),
            **implementing("on_run_end", lambda self: calls.append(f"end {name}")),
        }
        return stranger(plugin_with(**members), name, **manifest)

    digest_after(1, plugins=[named("a"), named("b", before={"a"}), named("c")])
    assert [f"{when} {name}" for when in ("start", "step") for name in "bac"] + [
        f"end {name}" for name in "cab"
    ] == calls


def test_the_first_answer_counts() -> None:
    from neaptide import CORRECT, FULL

    def choosing(name: str, phase: Any) -> PluginSpec:
        return stranger(plugin_with(**implementing("select_phase", lambda self: phase)), name)

    for plugins, expected in (
        ([choosing("a", CORRECT), choosing("b", FULL)], "correct"),
        ([choosing("a", None), choosing("b", FULL)], "full"),
        ([choosing("a", None)], "warmup"),
    ):
        task = tiny_task()
        config = {"phases": {"warmup": {"steps": 1}}}
        with HybridTrainer(
            task.model, task.optimizer, loss_fn=tiny_loss, plugins=plugins, config=config
        ) as trainer:
            assert expected == trainer.step(task.batches[0]).phase.name


def test_metrics_carry_the_plugins_name(tmp_path: Path) -> None:
    task = tiny_task()
    spec = stranger(
        plugin_with(**implementing("collect_metrics", lambda self: {"speed": 3.0})), "racer"
    )
    with HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, plugins=[spec]) as trainer:
        assert {"racer.speed": 3.0} == trainer.hooks.collect_metrics(
            0, trainer.step(task.batches[0]).phase
        )


@pytest.mark.parametrize("number", [torch.tensor(3.0), "3", None, 3j, [3.0]])
def test_metrics_are_numbers(number: Any) -> None:
    metrics = {"flag": True, "count": 3, "speed": number}
    members = implementing("collect_metrics", lambda self: metrics)
    trainer, batches = tiny_trainer(plugins=[stranger(plugin_with(**members), "racer")])
    with trainer, pytest.raises(PluginError) as caught:
        trainer.hooks.collect_metrics(0, trainer.step(batches[0]).phase)
    expected = (
        f"plugin 'racer' must return numbers from 'collect_metrics' "
        f"(got {type(number).__name__} for 'speed'); convert a tensor with tensor.item()"
    )
    assert expected == str(caught.value)


def test_an_observer_whose_metrics_are_no_numbers_is_removed_with_a_short_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    members = implementing("collect_metrics", lambda self: {"a" * 10**6: "b"})
    watcher = stranger(plugin_with(**members), "watcher", observer=True)
    trainer, batches = tiny_trainer(plugins=[watcher])
    with trainer:
        assert {} == trainer.hooks.collect_metrics(0, trainer.step(batches[0]).phase)
    (record,) = caplog.records
    assert record.getMessage().startswith("plugin.quarantined plugin=watcher hook=collect_metrics")
    assert len(record.getMessage()) < 400


def test_all_that_fails_at_the_end_comes_in_one_group() -> None:
    def broken(name: str) -> PluginSpec:
        def fail(self: Any) -> None:
            raise BoomError(name)

        return stranger(plugin_with(**implementing("on_run_end", fail)), name)

    with pytest.raises(ExceptionGroup) as caught:
        digest_after(1, plugins=[broken("a"), broken("b")])
    assert ["b", "a"] == [str(error) for error in caught.value.exceptions]


def test_a_failing_end_does_not_hide_the_error_that_ended_the_run() -> None:
    task = tiny_task()
    with (
        pytest.raises(ZeroDivisionError) as caught,
        HybridTrainer(
            task.model,
            task.optimizer,
            loss_fn=lambda model, batch: 1 / 0,
            plugins=[raising("on_run_end")],
        ) as trainer,
    ):
        trainer.step(task.batches[0])
    assert any("plugins failed while the run ended" in note for note in caught.value.__notes__)
