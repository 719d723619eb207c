"""Checks the form of all sections of a checkpoint before `load` changes the run.

The digests in a checkpoint prove that no byte has changed. The checks of this module prove that
names, types and shapes are right, so that this version can load the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from neaptide.api import rng
from neaptide.api.phases import PHASES
from neaptide.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from neaptide.api.parameters import ParameterStore
    from neaptide.checkpoint import Checkpoint

_Number = int | float


@contextmanager
def formed(loaded: Checkpoint, section: str) -> Iterator[None]:
    """Inside the context, turn any error into a CheckpointError about `section`."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        msg = (
            f"cannot load checkpoint {loaded.directory}: section {section!r} has an invalid form "
            f"({said:.200}); load an older checkpoint"
        )
        raise CheckpointError(msg) from error


def small_sections(loaded: Checkpoint) -> dict[str, Any]:
    """Check and return `training`, `rng`, `data`, `optimizer` and `buffers`."""
    checks = {
        "training": _check_training,
        "rng": rng.rehearse,
        "data": _check_data,
        "optimizer": _check_optimizer,
        "buffers": _check_buffers,
    }
    found = {}
    for name, check in checks.items():
        found[name] = loaded.section(name)
        with formed(loaded, name):
            check(found[name])
    return found


def check_large_sections(loaded: Checkpoint, store: ParameterStore, plugins: Iterable[str]) -> None:
    """Check `gradients`, `plugins` and `extra` without reading their tensors."""
    with formed(loaded, "gradients"):
        _check_gradients(loaded.outline("gradients"), store)
    with formed(loaded, "plugins"):
        _check_plugins(loaded.outline("plugins"), plugins)
    with formed(loaded, "extra"):
        _mapping(loaded.outline("extra"))


def _check_training(tree: Any) -> None:
    match tree:
        case {
            "step": int(),
            "batches": int(),
            "predicted": int(),
            "jumps": int(),
            "skipped_in_a_row": int(),
            "schedule": {"phase": str(phase), "done": int(), "uncorrected": int()},
            "history": {"updates": int(), "losses": list(losses), "gradient_norms": list(norms)},
            "accumulation": dict(waiting),
            "pending": pending,
        } if phase in PHASES and all(isinstance(one, _Number) for one in (*losses, *norms)):
            _check_accumulation(waiting)
            _check_pending(pending)
        case _:
            msg = "not the state of a training"
            raise ValueError(msg)


def _check_accumulation(tree: dict[Any, Any]) -> None:
    fields = {"pieces", "reference", "weight", "loss"}
    numbers = all(isinstance(value, _Number | torch.Tensor) for value in tree.values())
    if tree.keys() != fields or not numbers or not isinstance(tree["pieces"], int):
        msg = f"an accumulation must have exactly the numbers {sorted(fields)}"
        raise ValueError(msg)


def _check_pending(tree: Any) -> None:
    match tree:
        case None:
            return
        case {
            "step": int(),
            "phase": str(phase),
            "loss": int() | float(),
            "gradient_norm": None | int() | float(),
            "applied": bool(),
            **more,
        } if phase in PHASES and not more:
            return
    msg = "not a pending update"
    raise ValueError(msg)


def _check_data(tree: Any) -> None:
    match tree:
        case None:
            return
        case {"own": _, **more} if not more:
            return
        case {"used": int(used), "started_with": started, **more} if used >= 0 and not more:
            if started is not None:
                rng.rehearse(started)
            return
    msg = "not a position in the data"
    raise ValueError(msg)


def _check_optimizer(tree: Any) -> None:
    count = sum(len(group["params"]) for group in tree["param_groups"])
    for index, entries in _mapping(tree["state"]).items():
        if isinstance(index, int):
            _mapping(entries)
            if not 0 <= index < count:
                msg = f"state of parameter {index}, of {count}"
                raise ValueError(msg)
    for group in tree["param_groups"]:
        _names(group)


def _check_buffers(tree: Any) -> None:
    for name, value in _names(tree).items():
        _tensor(name, value)


def _check_gradients(tree: Any, store: ParameterStore) -> None:
    spans = {span.name: span for span in store.spans()}
    for name, value in _names(tree).items():
        span, found = spans[name], _tensor(name, value)
        if (found.dtype, tuple(found.shape)) != (span.dtype, span.shape):
            msg = (
                f"the gradient of {name!r} is {found.dtype} {tuple(found.shape)}, the parameter "
                f"{span.dtype} {span.shape}"
            )
            raise ValueError(msg)


def _check_plugins(tree: Any, expected: Iterable[str]) -> None:
    states = _names(tree)
    for name in expected:
        _mapping(states[name])


def _mapping(tree: Any) -> Mapping[Any, Any]:
    if not isinstance(tree, Mapping):
        msg = f"expected a mapping (got {type(tree).__name__})"
        raise TypeError(msg)
    return tree


def _names(tree: Any) -> Mapping[str, Any]:
    for key in _mapping(tree):
        if not isinstance(key, str):
            msg = f"expected a string as the key (got {key!r})"
            raise TypeError(msg)
    return _mapping(tree)


def _tensor(name: str, value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        msg = f"{name!r} is {type(value).__name__}, not a tensor"
        raise TypeError(msg)
    return value
