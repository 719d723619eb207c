"""The laws a plugin has to keep, each checked by real training on a tiny task."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import nn

from neaptide.errors import suggest
from neaptide.hooks.registry import installed_plugins
from neaptide.plugin import PluginSpec

from .estimates import estimate_is_allocated, estimate_is_measured
from .failures import Attempt, require, told_as
from .hostile_store import HOSTILE_STORE
from .manifests import config_round_trips, manifest_is_light
from .subject import STEPS, Subject
from .tiny import STEADY_PREDICTOR, tiny_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

SAVE_AFTER = (3, 13, 22)


def check_plugin(
    plugin: str | PluginSpec,
    settings: Mapping[str, Any] | None = None,
    *,
    beside: Iterable[str | PluginSpec] = (),
    laws: Iterable[str] | None = None,
) -> None:
    """Check that a plugin keeps the contract; a few seconds on a CPU.

    Args:
        plugin: an installed plugin's name, or a manifest.
        settings: its settings, where the defaults never act on a tiny model.
        beside: plugins it requires.
        laws: names from `LAWS`; all of them where left out.

    Raises:
        ContractError: the first law it breaks. Whatever the plugin raises meanwhile is the cause
            of one; KeyboardInterrupt alone passes.
        ValueError: no such plugin is installed, or there is no such law.
    """
    chosen = list(laws or LAWS)
    for law in chosen:
        if law not in LAWS:
            msg = f"there is no law {law!r}{suggest(law, LAWS)}; there is {', '.join(LAWS)}"
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
            f"no plugin {name!r} is installed{suggest(name, known)}; install what ships it, or "
            f"pass its PluginSpec"
        )
        raise ValueError(msg)
    attempt = Attempt()
    with told_as("manifest-is-light", f"plugin {name!r}", attempt):
        attempt.tries(f"import its entry point {known.installed[name].target!r}")
        return known[name]


def detach_leaves_no_trace(subject: Subject) -> None:
    """After the run the model's modules have the attributes, hooks and forwards they had."""
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
        "undo in on_run_end what the plugin patched: remove hooks by their handles, delete "
        "attributes, put modules back",
    )


def resume_is_exact(subject: Subject) -> None:
    """Saved at any step and loaded into a new run, it goes on to the same digest."""
    attempt = subject.attempt
    attempt.tries(f"train {STEPS} steps without a break")
    expected = _run(subject).digest
    for after in SAVE_AFTER:
        attempt.tries(
            f"save after step {after}, load that into a new run and train on to step {STEPS}"
        )
        with tempfile.TemporaryDirectory() as folder:
            saved = Path(folder) / "checkpoint"
            _run(subject, save=(after, saved))
            resumed = _run(subject, load=(after, saved)).digest
        if resumed != expected:
            require(
                _run(subject).digest == expected,
                "another digest, and even two runs without a break differ in theirs",
                "draw random numbers from torch's generators or from a seeded one; let no result "
                "depend on time, on addresses or on what an earlier run left behind",
            )
            require(
                holds=False,
                came=f"digest {resumed[:12]}… instead of {expected[:12]}… of the unbroken run",
                change="return from state_dict all that later steps read (counters, generators, "
                "windows half full), and take it back in load_state_dict",
            )


def numerics_are_as_declared(subject: Subject) -> None:
    """Weights and buffers end where the manifest says, bitwise or within `rtol` of without it."""
    spec = subject.spec
    if spec.numerics == "changes-training":
        return
    # What is only equal up to rounding may split batches: no module may look across samples then.
    coupled = spec.numerics == "exact"
    without = attrs.evolve(subject, spec=STEADY_PREDICTOR, settings={}, beside=())
    subject.attempt.tries(f"train {STEPS} steps without the plugin")
    plain = _run(without, coupled=coupled)
    subject.attempt.tries(
        f"train {STEPS} steps with the plugin, and compare the weights with those without it"
    )
    own = _run(subject, coupled=coupled)
    _require_same_names(plain, own)
    for name, weight in plain.weights.items():
        if spec.numerics == "exact" or not weight.is_floating_point():
            require(
                torch.equal(weight, own.weights[name]),
                f"{name} differs, and {spec.numerics!r} is declared",
                "leave weights, gradients and random state as they are, or declare what holds: "
                'numerics="tolerance" with an rtol, or numerics="changes-training"',
            )
        else:
            gap = float((weight - own.weights[name]).abs().max() / weight.abs().max())
            require(
                gap <= spec.rtol,
                f"{name} is off by {gap:.2e}, more than the declared rtol {spec.rtol:.2e}",
                "if no more than rounding differs, declare a larger rtol; else "
                'numerics="changes-training"',
            )


def works_on_loans_alone(subject: Subject) -> None:
    """Under HostileStore, where weights are NaN outside their loans, nothing changes by a bit."""
    if "param.storage" in subject.spec.claims:
        return
    loans = (
        "reach weights, gradients and optimizer state inside store.loan(…) alone, clone what is "
        "kept beyond it, and let nothing depend on the order of store.spans()"
    )
    subject.attempt.tries(f"train {STEPS} steps on the store that ships")
    resident = _run(subject)
    subject.attempt.tries(
        f"train {STEPS} steps on a store whose weights are NaN outside their loans", loans
    )
    hostile = _run(subject, HOSTILE_STORE)
    _require_same_names(resident, hostile)
    for name, weight in resident.weights.items():
        require(
            torch.equal(weight, hostile.weights[name]),
            f"{name} ends with other values than on the store that ships",
            loans,
        )
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
    "works-on-loans-alone": works_on_loans_alone,
    "estimate-is-measured": estimate_is_measured,
    "estimate-is-allocated": estimate_is_allocated,
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
    weights = {name: value.detach().clone() for name, value in task.model.state_dict().items()}
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
        "put what the plugin replaces in the model back in on_run_end, under the names and with "
        "the shapes it had",
    )


def _shape(result: _SubjectRun, name: str) -> torch.Size | None:
    return result.weights[name].shape if name in result.weights else None


def _traces(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return by module its class and its attributes; of dicts, such as hooks, the length."""
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
    """Yield what differs between the traces of a module; None where there is no such module."""
    if before is None or after is None:
        yield "new" if before is None else "gone"
        return
    yield from sorted(key for key in {**before, **after} if before.get(key) != after.get(key))
