"""The laws a plugin has to keep, each checked by real training on a tiny task."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import nn

from neaptide import config as configs
from neaptide.hooks.enabling import configured
from neaptide.hooks.registry import installed_plugins
from neaptide.plugin import PluginSpec

from .estimates import estimate_is_allocated, estimate_is_measured
from .hostile import HOSTILE_STORE
from .subject import STEPS, ContractError, Subject, require
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
        ContractError: naming the first law it breaks.
    """
    spec = plugin if isinstance(plugin, PluginSpec) else installed_plugins()[plugin]
    subject = Subject(spec, settings or {}, tuple(beside))
    for law in laws or LAWS:
        try:
            LAWS[law](subject)
        except ContractError as error:
            msg = f"plugin {spec.name!r} breaks the law {law!r}: {error}"
            raise ContractError(msg) from None


def manifest_is_light(subject: Subject) -> None:
    """The manifest has a summary and is importable without torch."""
    spec = subject.spec
    require(bool(spec.summary), "its manifest has no summary")
    found = installed_plugins().installed.get(spec.name)
    if found is None:
        return
    module = found.target.partition(":")[0]
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False)  # noqa: S603 - our own interpreter
    require(done.returncode == 0, f"importing {module} imports torch; keep it out of the manifest")


def config_round_trips(subject: Subject) -> None:
    """Its settings survive every format bit for bit; each has a default and a line of help."""
    full, _ = configured(subject.config(), subject.plugins())
    table = configs.unstructure(full)
    for name, notation in configs.FORMATS.items():
        again, _ = configured(notation.loads(notation.dumps(table)), subject.plugins())
        require(again == full, f"{name} changes its settings: {again.plugins} != {full.plugins}")
    for field in attrs.fields(subject.spec.config):
        require(field.default is not attrs.NOTHING, f"setting {field.name!r} has no default")
        require("help" in field.metadata, f"setting {field.name!r} has no help; use neaptide.field")


def detach_leaves_no_trace(subject: Subject) -> None:
    """After the run the model's modules have the attributes, hooks and forwards they had."""
    task = tiny_task(steps=8)
    before = _traces(task.model)
    with subject.trainer(task) as trainer:
        for batch in task.batches:
            trainer.step(batch)
    after = _traces(task.model)
    changed = [name for name in before if before[name] != after.get(name)]
    require(not changed and len(before) == len(after), f"it leaves traces in {changed}")


def resume_is_exact(subject: Subject) -> None:
    """Saved at any step and loaded into a new run, it goes on to the same digest."""
    expected = _run(subject).digest
    for after in SAVE_AFTER:
        with tempfile.TemporaryDirectory() as folder:
            saved = Path(folder) / "checkpoint"
            _run(subject, save=(after, saved))
            resumed = _run(subject, load=(after, saved)).digest
        require(resumed == expected, f"resumed after step {after}, the digest differs")


def numerics_are_as_declared(subject: Subject) -> None:
    """Weights and buffers end where the manifest says, bitwise or within `rtol` of without it."""
    if subject.spec.numerics == "changes-training":
        return
    # What is only equal up to rounding may split batches: no module may look across samples then.
    coupled = subject.spec.numerics == "exact"
    without = attrs.evolve(subject, spec=STEADY_PREDICTOR, settings={}, beside=())
    plain, own = _run(without, coupled=coupled), _run(subject, coupled=coupled)
    for name, weight in plain.weights.items():
        if subject.spec.numerics == "exact" or not weight.is_floating_point():
            require(torch.equal(weight, own.weights[name]), f"declared exact, but {name} differs")
        else:
            gap = float((weight - own.weights[name]).abs().max() / weight.abs().max())
            require(
                gap <= subject.spec.rtol,
                f"{name} is off by {gap:.2e}, more than the declared rtol {subject.spec.rtol:.2e}",
            )


def works_on_loans_alone(subject: Subject) -> None:
    """Under HostileStore, where weights are NaN outside their loans, nothing changes by a bit."""
    if "param.storage" in subject.spec.claims:
        return
    resident, hostile = _run(subject), _run(subject, HOSTILE_STORE)
    for name, weight in resident.weights.items():
        require(torch.equal(weight, hostile.weights[name]), f"{name} differs under HostileStore")
    require(resident.evaluated == hostile.evaluated, "evaluation differs under HostileStore")


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
class _Result:
    weights: dict[str, torch.Tensor]
    evaluated: float
    digest: str


def _run(
    subject: Subject,
    *more: PluginSpec,
    coupled: bool = True,
    save: tuple[int, Path] | None = None,
    load: tuple[int, Path] | None = None,
) -> _Result:
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
    return _Result(weights, evaluated, digest)


def _traces(model: nn.Module) -> dict[str, Any]:
    return {
        name: (
            type(module),
            sorted(vars(module)),
            {key: len(value) for key, value in vars(module).items() if key.endswith("_hooks")},
        )
        for name, module in model.named_modules()
    }
