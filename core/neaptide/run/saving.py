"""Saves a run to a checkpoint, and loads a run from a checkpoint."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.api import rng
from neaptide.checkpoint import store as checkpoints
from neaptide.checkpoint.safetensors_header import TensorItem
from neaptide.config import unstructure
from neaptide.errors import WrongCheckpointError
from neaptide.hooks.middleware import blame

from .saved_form import check_large_sections, formed, small_sections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from torch import nn

    from neaptide.api.parameters import ParameterStore
    from neaptide.config import RunConfig
    from neaptide.hooks.manager import HookManager
    from neaptide.loop.state import TrainState

_FREE = ("run", "train.device", "eval")
"""Settings that may differ after a resume, because they do not change the computation."""


@attrs.frozen(eq=False)
class Parts:
    """All parts of a run that have state."""

    model: nn.Module
    store: ParameterStore
    hooks: HookManager
    state: TrainState
    config: RunConfig
    extra: Mapping[str, Any]
    """The user's objects with `state_dict` and `load_state_dict`, by name."""


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
                name: _of_plugin(name, "state_dict", plugin.state_dict)
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
        }
        weights = [
            TensorItem(span.name, span.dtype, span.shape, partial(store.loan, span, "read"))
            for span in store.spans()
        ]
        checkpoints.save(directory, trees, parts.state.step, facts, {"weights": weights})
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
        _check_plugins(loaded, parts, allow_changes=allow_changes)
    if not allow_changes:
        with formed(loaded, "config"):
            _check_config(loaded.section("config"), unstructure(parts.config))
    weights, small = loaded.tensors("weights"), small_sections(loaded)
    _check_weights(weights, parts.store)
    _check_optimizer(small["optimizer"], parts.store.optimizer)
    _check_buffers(small["buffers"], dict(parts.model.named_buffers()), allow_changes=allow_changes)
    both = loaded.manifest.facts["plugins"].keys() & parts.hooks.plugins.keys()
    check_large_sections(loaded, parts.store, both)

    store = parts.store
    # Leave the phase first: plugins that store weights in another form then decode the weights.
    phase, parts.state.phase = parts.state.phase, None
    if phase is not None:
        parts.hooks.notify("on_phase_exit", phase=phase, following=None, step=parts.state.step)
    _load_tensors(parts, weights, small["buffers"], loaded.section("gradients"))
    with store.compute():
        store.load_optimizer_state_dict(small["optimizer"])
    parts.state.load_state_dict(small["training"])
    for name, state in loaded.section("plugins").items():
        if name in parts.hooks.plugins:
            load_state = partial(parts.hooks.plugins[name].load_state_dict, state)
            _of_plugin(name, "load_state_dict", load_state)
    for name, state in loaded.section("extra").items():
        if name in parts.extra:
            parts.extra[name].load_state_dict(state)
    rng.restore(small["rng"])
    return small["data"]


def _load_tensors(
    parts: Parts,
    weights: Mapping[str, torch.Tensor],
    saved_buffers: Mapping[str, torch.Tensor],
    gradients: Mapping[str, torch.Tensor],
) -> None:
    store = parts.store
    store.zero_gradients()
    for span in store.spans():
        with store.loan(span, "write") as weight, torch.no_grad():
            weight.copy_(weights[span.name])
        if span.name in gradients:
            with store.loan(span, "write", of="gradient") as gradient:
                gradient.copy_(gradients[span.name])
    for name, buffer in parts.model.named_buffers():
        if name in saved_buffers:
            buffer.copy_(saved_buffers[name])


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


def _of_plugin(name: str, where: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except BaseException as error:
        blame(error, name, where)
        raise


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


def _check_config(saved: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    before, now = dict(_flat(saved)), dict(_flat(here))
    differing = [
        f"{key} (saved {before.get(key)!r}, now {now.get(key)!r})"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
        and not any(key == free or key.startswith(f"{free}.") for free in _FREE)
    ]
    if differing:
        msg = f"the checkpoint was saved under another config: {'; '.join(differing)}{_OVERRIDE}"
        raise WrongCheckpointError(msg)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _check_weights(weights: Any, store: ParameterStore) -> None:
    spans = {span.name: span for span in store.spans()}
    _check_names("parameter", weights.keys(), spans.keys())
    for name, span in spans.items():
        dtype, shape = weights.info(name)
        if (dtype, tuple(shape)) != (span.dtype, span.shape):
            msg = (
                f"parameter {name!r} is {dtype} {tuple(shape)} in the checkpoint but {span.dtype} "
                f"{span.shape} in the model"
            )
            raise WrongCheckpointError(msg)


def _check_names(kind: str, saved: AbstractSet[str], here: AbstractSet[str]) -> None:
    for name in sorted(saved ^ here):
        where = "the checkpoint" if name in saved else "the model"
        msg = f"{kind} {name!r} is only in {where}; load it into the model it was saved from"
        raise WrongCheckpointError(msg)


def _check_optimizer(saved: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    before = [len(group["params"]) for group in saved["param_groups"]]
    now = [len(group["params"]) for group in optimizer.param_groups]
    if before != now:
        msg = (
            f"the optimizer's parameter groups hold {now} parameters, the checkpoint's {before}; "
            f"build it the same way"
        )
        raise WrongCheckpointError(msg)
    # Each optimizer class has its own settings. A saved group may also have a scheduler's settings.
    for group, settings in zip(saved["param_groups"], optimizer.param_groups, strict=True):
        missing = sorted(settings.keys() - group.keys())
        if missing:
            msg = (
                f"the checkpoint is of another optimizer than {type(optimizer).__name__}: it has "
                f"no {', '.join(missing)}; build the one it was saved with"
            )
            raise WrongCheckpointError(msg)


def _check_buffers(
    saved: Mapping[str, torch.Tensor], here: Mapping[str, torch.Tensor], *, allow_changes: bool
) -> None:
    if not allow_changes:  # other plugins may have added or removed buffers
        _check_names("buffer", saved.keys(), here.keys())
    for name in sorted(saved.keys() & here.keys()):
        if saved[name].shape != here[name].shape:
            msg = (
                f"buffer {name!r} has shape {tuple(saved[name].shape)} in the checkpoint but "
                f"{tuple(here[name].shape)} in the model"
            )
            raise WrongCheckpointError(msg)
