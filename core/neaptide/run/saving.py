"""Saves a run to a checkpoint, and loads a run from a checkpoint."""

from __future__ import annotations

import re
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.api import rng
from neaptide.checkpoint import store as checkpoints
from neaptide.config import unstructure
from neaptide.config.tables import at, leaves
from neaptide.errors import WrongCheckpointError
from neaptide.io.logging import CONSOLE

from .saved_form import check_large_sections, check_manifest, formed, small_sections
from .saved_weights import SavedWeights, check_names, save_frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import nn

    from neaptide.api.parameters import ParameterStore
    from neaptide.config import RunConfig
    from neaptide.hooks.manager import HookManager
    from neaptide.loop.state import TrainState

    from .recorder import Recorder

_FREE = ("run", "train.device", "eval")
"""Settings that may differ after a resume, because they do not change the computation."""

_OF_A_PARAMETER = re.compile(r"/state/\$\d+/[^/]+")
"""References to tensors in an optimizer's `state_dict`, which a store loads one by one."""


@attrs.frozen(eq=False)
class Parts:
    """All parts of a run that have state."""

    model: nn.Module
    store: ParameterStore
    hooks: HookManager
    state: TrainState
    config: RunConfig
    recorder: Recorder
    extra: Mapping[str, Any]
    """The user's objects with `state_dict` and `load_state_dict`, by name."""
    bases: set[Path] = attrs.field(factory=set)
    """The directories with frozen weights that this run has written or verified."""


@contextmanager
def sections(parts: Parts, data: Any) -> Iterator[dict[str, Any]]:
    """Yield a dict from names of sections to trees of state: all state except the weights."""
    state = parts.state
    with parts.store.compute(), parts.store.optimizer_state() as optimizer:
        yield {
            "buffers": dict(parts.model.named_buffers()),
            "gradients": _gradients(parts.store) if state.accumulation.pieces else {},
            "optimizer": optimizer,
            "training": state.state_dict(),
            "rng": rng.capture(),
            "data": data,
            "plugins": {
                name: parts.hooks.ask(name, "state_dict", plugin.state_dict)
                for name, plugin in parts.hooks.plugins.items()
            },
            "extra": {name: value.state_dict() for name, value in parts.extra.items()},
        }


def save(directory: Path, parts: Parts, data: Any) -> Path:
    """Write a checkpoint of all parts into `directory`, atomically."""
    store = parts.store
    with sections(parts, data) as trees:
        trees["config"] = unstructure(parts.config)
        facts = {
            "plugins": {name: spec.version for name, spec in parts.hooks.specs.items()},
            "phase": parts.state.schedule.phase.name,
            "threads": torch.get_num_threads(),
            **parts.recorder.facts(parts.state.step),
        }
        weights, frozen = save_frozen(directory, store, parts.config.run, parts.bases)
        checkpoints.save(
            directory, trees, parts.state.step, {**facts, **frozen}, {"weights": weights}
        )
    return directory


def load(directory: Path, parts: Parts, *, allow_changes: bool = False) -> Any:
    """Load a checkpoint into `parts`; return the saved position in the data.

    Raises CheckpointError if the checkpoint is damaged or a section has a wrong form. Raises
    WrongCheckpointError if there is no checkpoint, or if the checkpoint belongs to another config,
    model or set of plugins. Both errors are raised before the run is changed. With `allow_changes`
    the config and the plugins may differ.
    """
    loaded = checkpoints.load(directory)
    with formed(loaded, "manifest"):
        check_manifest(loaded)
        records = parts.recorder.known(directory, loaded.manifest.facts)
        _check_plugins(loaded, parts, allow_changes=allow_changes)
    with formed(loaded, "config"):
        _check_config(loaded.section("config"), unstructure(parts.config), changes=allow_changes)
    weights, small = SavedWeights.of(loaded, parts.config.run), small_sections(loaded)
    weights.check(parts.store)
    saved = loaded.manifest.facts["plugins"]
    plugins = {name: plugin for name, plugin in parts.hooks.plugins.items() if name in saved}
    fresh, training = not parts.state.batches, small["training"]
    ask = parts.hooks.ask
    present = {name: ask(name, "state_dict", one.state_dict) for name, one in plugins.items()}
    more = {"buffers": dict(parts.model.named_buffers()), "allow_changes": allow_changes}
    check_large_sections(loaded, parts.store, present, fresh=fresh, training=training, **more)
    states = loaded.outline("plugins")
    for name, plugin in plugins.items():
        with formed(loaded, "plugins", f"plugin {name!r}"):
            ask(name, "check_state_dict", partial(plugin.check_state_dict, states[name]))
    if not allow_changes:
        check_names("the object", loaded.outline("extra").keys(), parts.extra.keys())

    parts.state.half_loaded, parts.recorder.saved = directory, records
    _keep_threads(loaded.manifest.facts.get("threads"), parts.config.train.threads)
    store = parts.store
    # Leave the phase first: plugins that store weights in another form then decode the weights.
    phase, parts.state.phase = parts.state.phase, None
    if phase is not None:
        parts.hooks.notify("on_phase_exit", phase=phase, following=None, step=parts.state.step)
    _load_tensors(parts, weights, small["buffers"], loaded.section("gradients"))
    with store.compute(), formed(loaded, "optimizer", begun=True):
        store.load_optimizer_state_dict(*loaded.deferred("optimizer", _OF_A_PARAMETER))
    parts.state.load_state_dict(small["training"])
    for name, state in loaded.section("plugins").items():
        if name in plugins:
            with formed(loaded, "plugins", f"plugin {name!r}", begun=True):
                ask(name, "load_state_dict", partial(plugins[name].load_state_dict, state))
    for name, state in loaded.section("extra").items():
        if name in parts.extra:
            with formed(loaded, "extra", f"the object {name!r}", begun=True):
                parts.extra[name].load_state_dict(state)
    rng.restore(small["rng"])
    parts.state.half_loaded = None
    return small["data"]


def _keep_threads(saved: Any, wanted: int | None) -> None:
    """Compute with as many threads as before, unless the config names a number: sums depend on it.

    Checkpoints of earlier versions do not know the number.
    """
    here = torch.get_num_threads()
    if type(saved) is int and 0 < saved != here and wanted is None:
        torch.set_num_threads(saved)
        CONSOLE.warning(
            "going on with %d CPU threads, as the run began (here torch would use %d); another "
            "number may change the last bits of results; train.threads sets it",
            saved,
            here,
        )


def _load_tensors(
    parts: Parts, weights: SavedWeights, buffers: Mapping[str, Any], gradients: Mapping[str, Any]
) -> None:
    store = parts.store
    store.zero_gradients()
    for span in store.spans():
        with store.loan(span, "write") as weight, torch.no_grad():
            weights.file_of(span.name).copy_to(span.name, weight)
        if span.name in gradients:
            with store.loan(span, "write", of="gradient") as gradient:
                gradient.copy_(gradients[span.name])
    for name, buffer in parts.model.named_buffers():
        if name in buffers:
            buffer.copy_(buffers[name])


def digest(parts: Parts, data: Any) -> str:
    """Return the sha256 of weights, buffers, optimizer, plugins, schedule, RNG and data position.

    Runs with equal computations have equal digests. Times are not included.
    Plugins and user objects are included if they have state.
    """
    store = parts.store
    with sections(parts, data) as trees:
        for section in ("plugins", "extra"):
            trees[section] = {name: state for name, state in trees[section].items() if state}
        weights = {}
        for span in store.spans():
            with store.loan(span, "read") as weight:
                weights[span.name] = checkpoints.digest(weight)
        return checkpoints.digest({**trees, "weights": weights})


def _gradients(store: ParameterStore) -> dict[str, torch.Tensor]:
    gradients = {}
    for span in store.spans():
        if store.has_gradient(span):
            with store.loan(span, "read", of="gradient") as gradient:
                gradients[span.name] = gradient.clone()
    return gradients


def _check_plugins(loaded: Any, parts: Parts, *, allow_changes: bool) -> None:
    saved: dict[str, int] = loaded.manifest.facts["plugins"]
    here = {name: spec.version for name, spec in parts.hooks.specs.items()}
    for name in sorted(saved.keys() & here.keys()):
        if saved[name] != here[name]:
            msg = (
                f"the checkpoint holds state of plugin {name!r} in version {saved[name]}, but here "
                f"is version {here[name]}; install the one it was saved with"
            )
            raise WrongCheckpointError(msg)
    differing = sorted(saved.keys() ^ here.keys())
    if differing and not allow_changes:
        names = ", ".join(
            f"{name} ({'only saved' if name in saved else 'only now'})" for name in differing
        )
        msg = (
            f"the checkpoint was saved with other plugins: {names}; enable the same ones{_OVERRIDE}"
        )
        raise WrongCheckpointError(msg)


_OVERRIDE = ", or allow it with --allow-changes (allow_changes=True)"


def _check_config(saved: Mapping[str, Any], here: Mapping[str, Any], *, changes: bool) -> None:
    before, now = _flat(saved), _flat(here)
    differing = [
        f"{key} (saved {before.get(key)!r}, now {now.get(key)!r})"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
        and not any(key == free or key.startswith(f"{free}.") for free in _FREE)
    ]
    if changes and (kept := [one for one in differing if one.startswith("optimizer.")]):
        text = "the optimizer goes on with options of the checkpoint; this may have no effect: %s"
        CONSOLE.warning(text, "; ".join(kept))
    if differing and not changes:
        msg = f"the checkpoint was saved under another config: {'; '.join(differing)}{_OVERRIDE}"
        raise WrongCheckpointError(msg)


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    found = {".".join(map(str, path)): at(table, path) for path in leaves(table)}
    return {name: value for name, value in found.items() if value != {}}
