"""The laws: the rules that every plugin must keep. Most are checked by training on a tiny task."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.errors import suggest
from neaptide.hooks.registry import installed_plugins
from neaptide.plugin import PluginSpec

from .estimates import estimate_is_allocated, estimate_is_measured
from .failures import Attempt, require, told_as
from .hostile_store import HOSTILE_STORE
from .manifests import config_round_trips, manifest_is_light
from .parting import partings
from .races import no_races
from .rollbacks import rollback_is_forgotten
from .subject import STEPS, Subject
from .tiny import STEADY_PREDICTOR, tiny_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import torch
    from torch import nn

SAVE_AFTER = (3, 13, 22)


def check_plugin(
    plugin: str | PluginSpec,
    settings: Mapping[str, Any] | None = None,
    *,
    beside: Iterable[str | PluginSpec] = (),
    laws: Iterable[str] | None = None,
) -> None:
    """Check that a plugin keeps the contract. The check takes a few seconds on a CPU.

    The runs are on the accelerator, if there is one. This may be a simulated GPU.

    Args:
        plugin: an installed plugin's name, or a manifest.
        settings: settings of the plugin, if the default settings have no effect on a tiny model.
        beside: plugins that `plugin` requires.
        laws: names from `LAWS`; by default all laws.

    Raises:
        ContractError: names the first broken law. If an exception was raised during the check,
            the `__cause__` of the ContractError is this exception. A KeyboardInterrupt is not
            converted.
        ValueError: no such plugin is installed, or there is no such law.
    """
    chosen = list(laws or LAWS)
    for law in chosen:
        if law not in LAWS:
            msg = f"there is no law {law!r}{suggest(law, LAWS)}; the laws are {', '.join(LAWS)}"
            raise ValueError(msg)
    spec = plugin if isinstance(plugin, PluginSpec) else _manifest(plugin)
    subject = Subject(spec, settings or {}, tuple(beside))
    names = {one if isinstance(one, str) else one.name for one in subject.beside}
    for law in chosen:
        with told_as(law, f"plugin {spec.name!r}", subject.attempt, spec.name, names):
            LAWS[law](subject)


def _manifest(name: str) -> PluginSpec:
    known = installed_plugins()
    if name not in known.installed:
        msg = (
            f"no plugin {name!r} is installed{suggest(name, known)}; install its distribution, or "
            f"pass its PluginSpec"
        )
        raise ValueError(msg)
    attempt = Attempt()
    with told_as("manifest-is-light", f"plugin {name!r}", attempt):
        attempt.tries(f"import its entry point {known.installed[name].target!r}")
        return known[name]


def detach_leaves_no_trace(subject: Subject) -> None:
    """After the run, the model's modules have the same attributes and hooks as before the run."""
    task = tiny_task(steps=8)
    subject.attempt.tries("train 8 steps, close the run and look for traces in the model")
    before = _traces(task.model)
    with attrs.evolve(subject, may_fail=True).trainer(task) as trainer:
        for batch in task.batches:
            trainer.step(batch)
    after = _traces(task.model)
    changed = [
        f"{name or 'the model'} ({', '.join(_differences(before.get(name), after.get(name)))})"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]
    require(
        not changed,
        f"traces in {'; '.join(changed)}",
        "in on_run_end undo every change to the model: remove hooks by their handles, delete "
        "attributes, restore modules",
    )


def resume_is_exact(subject: Subject) -> None:
    """A run that continues from a checkpoint ends with the same digest as an uninterrupted run."""
    attempt = subject.attempt
    attempt.tries(f"train {STEPS} steps without a break")
    expected = _run(subject).digest
    for after in SAVE_AFTER:
        attempt.tries(
            f"save after step {after}, load the checkpoint into a new run and train to step {STEPS}"
        )
        with tempfile.TemporaryDirectory() as folder:
            saved = Path(folder) / "checkpoint"
            _run(subject, save=(after, saved))
            resumed = _run(subject, load=(after, saved)).digest
        if resumed != expected:
            require(
                _run(subject).digest == expected,
                "another digest, and even two runs without a break have different digests",
                "draw random numbers from torch's generators or from a seeded one; let no result "
                "depend on time, on addresses or on the state of an earlier run",
            )
            require(
                holds=False,
                came=f"digest {resumed[:12]}… instead of {expected[:12]}… of the unbroken run",
                change="return from state_dict everything that later steps read (counters, "
                "generators, partly filled windows), and restore it in load_state_dict",
            )


def numerics_are_as_declared(subject: Subject) -> None:
    """The plugin changes weights and buffers at most as much as its manifest declares.

    They are compared with a run without the plugin. The manifest declares that they are bitwise
    equal (`exact`), equal within `rtol` (`tolerance`), or different (`changes-training`).
    """
    spec = subject.spec
    if spec.numerics == "changes-training":
        return
    # A plugin with numerics "tolerance" may split batches. So the model of the task must not have
    # modules that mix samples, such as batch norm.
    coupled = spec.numerics == "exact"
    without = attrs.evolve(subject, spec=STEADY_PREDICTOR, settings={}, beside=())
    subject.attempt.tries(f"train {STEPS} steps without the plugin")
    plain = _run(without, coupled=coupled)
    subject.attempt.tries(
        f"train {STEPS} steps with the plugin, and compare the weights with those without it"
    )
    own = _run(subject, coupled=coupled)
    rtol = 0.0 if spec.numerics == "exact" else spec.rtol
    _require_same_names(plain, own)
    for parting in partings(plain.weights, own.weights, rtol=rtol):
        if spec.numerics == "exact" or parting.gap is None:
            require(
                holds=False,
                came=f"{parting}, and {spec.numerics!r} is declared",
                change="do not change weights, gradients or random state, or declare the effect: "
                'numerics="tolerance" with an rtol, or numerics="changes-training"',
            )
        require(
            holds=False,
            came=f"{parting}, more than the declared rtol {spec.rtol:.2e}",
            change="if the difference is only rounding, declare a larger rtol; otherwise "
            'numerics="changes-training"',
        )


def works_on_loans_alone(subject: Subject) -> None:
    """With HostileStore, the results are bitwise equal to the results with the default store.

    HostileStore hides the weights outside `store.loan`.
    """
    if "param.storage" in subject.spec.claims:
        return
    loans = (
        "access weights, gradients and optimizer state only inside store.loan(…), clone values "
        "that are kept longer, and do not depend on the order of store.spans()"
    )
    subject.attempt.tries(f"train {STEPS} steps with the default store")
    resident = _run(subject)
    subject.attempt.tries(
        f"train {STEPS} steps with a store whose weights are NaN outside their loans", loans
    )
    hostile = _run(subject, HOSTILE_STORE)
    _require_same_names(resident, hostile)
    for parting in partings(resident.weights, hostile.weights):
        require(holds=False, came=f"{parting} in comparison with the default store", change=loans)
    require(
        resident.evaluated == hostile.evaluated,
        f"the loss {hostile.evaluated} of an evaluation, instead of {resident.evaluated}",
        loans,
    )


LAWS: dict[str, Callable[[Subject], None]] = {
    "manifest-is-light": manifest_is_light,
    "config-round-trips": config_round_trips,
    "detach-leaves-no-trace": detach_leaves_no_trace,
    "resume-is-exact": resume_is_exact,
    "numerics-are-as-declared": numerics_are_as_declared,
    "rollback-is-forgotten": rollback_is_forgotten,
    "works-on-loans-alone": works_on_loans_alone,
    "estimate-is-measured": estimate_is_measured,
    "estimate-is-allocated": estimate_is_allocated,
    "no-races": no_races,
}


@attrs.frozen(eq=False)
class _SubjectRun:
    weights: dict[str, torch.Tensor]
    evaluated: float
    digest: str


def _run(
    subject: Subject,
    *more: PluginSpec,
    coupled: bool = True,
    save: tuple[int, Path] | None = None,
    load: tuple[int, Path] | None = None,
) -> _SubjectRun:
    task = tiny_task(coupled=coupled)
    trainer = subject.trainer(task, *more)
    with trainer:
        first = 0
        if load is not None:
            first = load[0]
            trainer.load(load[1])
        for index, batch in enumerate(task.batches[first:STEPS], start=first + 1):
            trainer.step(batch)
            if save is not None and index == save[0]:
                trainer.save(save[1])
                break
        evaluated = trainer.evaluate(task.batches[STEPS:])
        digest = trainer.digest()
    state = task.model.state_dict()
    weights = {name: value.detach().to("cpu", copy=True) for name, value in state.items()}
    return _SubjectRun(weights, evaluated, digest)


def _require_same_names(expected: _SubjectRun, own: _SubjectRun) -> None:
    others = {
        name
        for name in {**expected.weights, **own.weights}
        if _shape(expected, name) != _shape(own, name)
    }
    require(
        not others,
        f"parameters or buffers that are missing, new or of another shape: {sorted(others)}",
        "in on_run_end restore every part of the model that the plugin replaced, under its former "
        "name and with its former shape",
    )


def _shape(result: _SubjectRun, name: str) -> torch.Size | None:
    return result.weights[name].shape if name in result.weights else None


def _traces(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return each module's class and attributes.

    For an attribute that is a dict, such as hooks, the value is the dict's length. For every other
    attribute the value is True.
    """
    return {
        name: {
            "its class": type(module),
            **{
                key: len(value) if isinstance(value, dict) else True
                for key, value in vars(module).items()
            },
        }
        for name, module in model.named_modules()
    }


def _differences(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> Iterable[str]:
    """Yield the differences between two traces of a module; None stands for a missing module."""
    if before is None or after is None:
        yield "new" if before is None else "gone"
        return
    yield from sorted(key for key in {**before, **after} if before.get(key) != after.get(key))
