"""The laws a plugin has to keep, each checked by real training on a tiny task."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import nn

from neaptide import config as configs
from neaptide.enabling import configured
from neaptide.memory import tensor_bytes
from neaptide.parameters import ParameterStore
from neaptide.phases import PHASES
from neaptide.plugin import Plugin, PluginSpec
from neaptide.registry import installed_plugins
from neaptide.trainer import HybridTrainer

from .hostile import HOSTILE_STORE
from .tiny import STEADY_PREDICTOR, tiny_loss, tiny_task

STEPS = 30
SAVE_AFTER = (3, 13, 22)
PHASE_LENGTHS = {
    "warmup": {"steps": 4},
    "full": {"steps": 6},
    "predict": {"max_horizon": 5, "correction_interval": 1},
    "correct": {"steps": 3},
}
ESTIMATE_TOLERANCE = 0.05


class ContractError(AssertionError):
    """A plugin breaks a law; the text says which, what was seen and what was expected."""


@attrs.frozen
class Subject:
    """The plugin under check, with the settings and the company it is checked in."""

    spec: PluginSpec
    settings: Mapping[str, Any]
    beside: tuple[str | PluginSpec, ...]

    def plugins(self, *more: PluginSpec) -> list[str | PluginSpec]:
        """Return what to enable: the plugin, its company, and a predictor if it brings none."""
        claims = self.spec.claims | {
            claim
            for other in self.beside
            if isinstance(other, PluginSpec)
            for claim in other.claims
        }
        predictor = [] if "predictor" in claims else [STEADY_PREDICTOR]
        return [self.spec, *self.beside, *predictor, *more]

    def config(self) -> dict[str, Any]:
        """Return the run's config."""
        return {
            "phases": PHASE_LENGTHS,
            "train": {"clip_norm": 1.0, "steps": STEPS},
            "plugins": {self.spec.name: dict(self.settings)},
        }


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
    _require(bool(spec.summary), "its manifest has no summary")
    found = installed_plugins().installed.get(spec.name)
    if found is None:
        return
    module = found.target.partition(":")[0]
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False)  # noqa: S603 - our own interpreter
    _require(done.returncode == 0, f"importing {module} imports torch; keep it out of the manifest")


def config_round_trips(subject: Subject) -> None:
    """Its settings survive every format bit for bit; each has a default and a line of help."""
    full, _ = configured(subject.config(), subject.plugins())
    table = configs.unstructure(full)
    for name, notation in configs.FORMATS.items():
        again, _ = configured(notation.loads(notation.dumps(table)), subject.plugins())
        _require(again == full, f"{name} changes its settings: {again.plugins} != {full.plugins}")
    for field in attrs.fields(subject.spec.config):
        _require(field.default is not attrs.NOTHING, f"setting {field.name!r} has no default")
        _require(
            "help" in field.metadata, f"setting {field.name!r} has no help; use neaptide.field"
        )


def detach_leaves_no_trace(subject: Subject) -> None:
    """After the run the model's modules have the attributes, hooks and forwards they had."""
    task = tiny_task(steps=8)
    before = _traces(task.model)
    with _trainer(task, subject) as trainer:
        for batch in task.batches:
            trainer.step(batch)
    after = _traces(task.model)
    changed = [name for name in before if before[name] != after.get(name)]
    _require(not changed and len(before) == len(after), f"it leaves traces in {changed}")


def resume_is_exact(subject: Subject) -> None:
    """Saved at any step and loaded into a new run, it goes on to the same digest."""
    expected = _run(subject).digest
    for after in SAVE_AFTER:
        with tempfile.TemporaryDirectory() as folder:
            saved = Path(folder) / "checkpoint"
            _run(subject, save=(after, saved))
            resumed = _run(subject, load=(after, saved)).digest
        _require(resumed == expected, f"resumed after step {after}, the digest differs")


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
            _require(torch.equal(weight, own.weights[name]), f"declared exact, but {name} differs")
        else:
            gap = float((weight - own.weights[name]).abs().max() / weight.abs().max())
            _require(
                gap <= subject.spec.rtol,
                f"{name} is off by {gap:.2e}, more than the declared rtol {subject.spec.rtol:.2e}",
            )


def works_on_loans_alone(subject: Subject) -> None:
    """Under HostileStore, where weights are NaN outside their loans, nothing changes by a bit."""
    if "param.storage" in subject.spec.claims:
        return
    resident, hostile = _run(subject), _run(subject, HOSTILE_STORE)
    for name, weight in resident.weights.items():
        _require(torch.equal(weight, hostile.weights[name]), f"{name} differs under HostileStore")
    _require(resident.evaluated == hostile.evaluated, "evaluation differs under HostileStore")


def estimate_is_measured(subject: Subject) -> None:
    """Its estimate of what it holds between steps is what its tensors take, within 5 %."""
    task = tiny_task()
    with _trainer(task, subject) as trainer:
        for batch in task.batches[:STEPS]:
            trainer.step(batch)
        held = tensor_bytes(_owned(trainer.hooks.plugins[subject.spec.name], task.model))
        for phase in PHASES:
            ledger = trainer.estimate_memory(phase)
            stated = ledger.total(owner=subject.spec.name, moment="update")
            _require(
                abs(stated - held) <= ESTIMATE_TOLERANCE * max(stated, held),
                f"in {phase} it estimates {stated} bytes between steps but holds {held}",
            )


LAWS: dict[str, Callable[[Subject], None]] = {
    "manifest-is-light": manifest_is_light,
    "config-round-trips": config_round_trips,
    "detach-leaves-no-trace": detach_leaves_no_trace,
    "resume-is-exact": resume_is_exact,
    "numerics-are-as-declared": numerics_are_as_declared,
    "works-on-loans-alone": works_on_loans_alone,
    "estimate-is-measured": estimate_is_measured,
}


@attrs.frozen(eq=False)
class _Result:
    weights: dict[str, torch.Tensor]
    evaluated: float
    digest: str


def _trainer(task: Any, subject: Subject, *more: PluginSpec) -> HybridTrainer:
    return HybridTrainer(
        task.model,
        task.optimizer,
        loss_fn=tiny_loss,
        config=subject.config(),
        plugins=subject.plugins(*more),
    )


def _run(
    subject: Subject,
    *more: PluginSpec,
    coupled: bool = True,
    save: tuple[int, Path] | None = None,
    load: tuple[int, Path] | None = None,
) -> _Result:
    task = tiny_task(coupled=coupled)
    trainer = _trainer(task, subject, *more)
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


def _owned(plugin: Plugin[Any], model: nn.Module) -> list[torch.Tensor]:
    """Return the tensors reachable from `plugin` that are not the model's."""
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    seen: set[int] = set()
    found: list[torch.Tensor] = []
    queue: list[Any] = [plugin]
    while queue:
        value = queue.pop()
        if id(value) in seen or isinstance(
            value, nn.Module | ParameterStore | torch.optim.Optimizer | type
        ):
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if id(value) not in own:
                found.append(value)
        elif isinstance(value, Mapping):
            queue.extend(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            queue.extend(value)
        elif attrs.has(type(value)):
            names = (field.name for field in attrs.fields(type(value)))
            queue.extend(getattr(value, name, None) for name in names)
        elif hasattr(value, "__dict__") and not callable(value):
            queue.extend(vars(value).values())
    return found


def _require(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        raise ContractError(otherwise)
