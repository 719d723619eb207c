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
from neaptide.errors import CheckpointError, described, ends, is_out_of_memory
from neaptide.plugin import shipped

from .signals import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neaptide.api.parameters import ParameterStore
    from neaptide.checkpoint import Checkpoint

FORMS_GROUP = "neaptide.saved_forms"
"""Entry points: functions that check the section of their name, see `check_large_sections`."""
SECTIONS = {
    *("buffers", "gradients", "optimizer", "training", "rng", "data", "plugins", "extra", "config"),
}


@contextmanager
def formed(
    loaded: Checkpoint, section: str, owner: str = "", *, begun: bool = False
) -> Iterator[None]:
    """Inside the context, turn any error into a CheckpointError about `section`.

    `owner` is whose state it is: its code may raise anything. `begun`: the run is changed already.
    """
    try:
        yield
    except (CheckpointError, Interrupted):
        raise
    except BaseException as error:
        if ends(error) or (begun and is_out_of_memory(error)):
            raise
        what = f"{owner} cannot load its part of" if owner else "wrong form of"
        said = f"{what} section {section!r} ({described(error):.200})"
        half = "; the run is half loaded: make a new trainer" if begun else ""
        way_out = f", or resume without {owner} (--allow-changes)" if owner else ""
        said = f"{said}{half}; load an older checkpoint{way_out}"
        msg = f"cannot load checkpoint {loaded.directory}: {said}"
        raise CheckpointError(msg) from error


def small_sections(loaded: Checkpoint) -> dict[str, Any]:
    """Check and return `training`, `rng`, `data` and `buffers`."""
    checks: dict[str, Callable[[Any], object]] = {
        "training": as_names,
        "rng": rng.rehearse,
        "data": _check_data,
        "buffers": tensors_of,
    }
    found = {}
    for name, check in checks.items():
        found[name] = loaded.section(name)
        with formed(loaded, name):
            check(found[name])
    return found


def check_large_sections(
    loaded: Checkpoint, store: ParameterStore, plugins: Mapping[str, Mapping[str, Any]], **run: Any
) -> None:
    """Check sections without reading their tensors.

    `plugins` has the present state of those whose state will be loaded. The installed functions
    that know more of a section's form get its outline, the arguments, the step and `run`.
    """
    run["step"] = loaded.manifest.step
    with formed(loaded, "plugins"):
        states = as_names(loaded.outline("plugins"))
        for name in plugins:
            as_mapping(states[name])
    with formed(loaded, "extra"):
        as_mapping(loaded.outline("extra"))
    for section, entry in sorted(shipped(FORMS_GROUP).items(), reverse=True):
        # "training" comes before what looks into it
        with formed(loaded, section):
            entry.load()(loaded.outline(section), store=store, plugins=plugins, **run)


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


def check_manifest(loaded: Checkpoint) -> None:
    """Check the facts that the run saves, and that there is no other section."""
    facts = loaded.manifest.facts
    versions, threads = as_names(facts["plugins"]), facts.get("threads", 1)
    whole = all(type(one) is int for one in (*versions.values(), threads))
    if not (whole and 0 < threads < 1 << 16):
        msg = f"versions of plugins and the number of threads must be whole numbers (got {facts})"
        raise ValueError(msg)
    unknown = sorted({*loaded.sections()} - SECTIONS)
    if unknown:
        msg = f"sections that this version does not know: {', '.join(unknown)}"
        raise ValueError(msg)


def as_mapping(tree: Any) -> Mapping[Any, Any]:
    """Return `tree`; TypeError if it is no mapping."""
    if not isinstance(tree, Mapping):
        msg = f"expected a mapping (got {type(tree).__name__})"
        raise TypeError(msg)
    return tree


def as_names(tree: Any) -> Mapping[str, Any]:
    """Return `tree`; TypeError if it is no mapping whose keys are strings."""
    for key in as_mapping(tree):
        if not isinstance(key, str):
            msg = f"expected a string as the key (got {key!r})"
            raise TypeError(msg)
    return as_mapping(tree)


def tensors_of(tree: Any) -> Mapping[str, torch.Tensor]:
    """Return `tree`; TypeError if it is no mapping from strings to tensors."""
    for name, value in as_names(tree).items():
        if not isinstance(value, torch.Tensor):
            msg = f"{name!r} is {type(value).__name__}, not a tensor"
            raise TypeError(msg)
    return as_names(tree)
