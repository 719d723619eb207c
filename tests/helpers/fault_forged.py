"""Checkpoints that somebody made: their digests are right, their sections are not."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any

import attrs
import torch
from fault_forged_places import (
    COUNTERS,
    FRACTIONS,
    LISTS,
    MAPPINGS,
    OTHERS,
    SECTIONS,
    TENSORS,
    TEXTS,
)
from fault_run import NEWEST
from fault_verdicts import auto, in_turn, newest

from neaptide.checkpoint import load, save, writing
from neaptide.checkpoint.safetensors_stream import resident

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fault_verdicts import Fault

    Named = Iterator[tuple[str, Callable[[Path], object]]]


@attrs.define
class Parts:
    """All that is in a checkpoint."""

    sections: dict[str, Any]
    weights: dict[str, torch.Tensor]
    facts: dict[str, Any]
    step: int
    more: dict[str, Any] = attrs.field(factory=dict)

    def tree(self, root: str) -> Any:
        """Return what a path begins in."""
        tops = {"weights": self.weights, "facts": self.facts, "checkpoint": self.sections}
        return tops[root] if root in tops else self.sections[root]


def rewritten(edit: Callable[[Parts], object]) -> Callable[[Path], None]:
    """Return an edit of the newest checkpoint after which its digests are right again."""

    def commit(run: Path) -> None:
        directory = run / NEWEST
        loaded = load(directory)
        sections = {name: loaded.section(name) for name in loaded.sections()}
        facts, weights = dict(loaded.manifest.facts), loaded.tensors("weights").whole()
        parts = Parts(sections, weights, facts, loaded.manifest.step)
        edit(parts)
        streams = {"weights": parts.weights, **parts.more}
        items = {
            name: [resident(*one) for one in stream.items()] for name, stream in streams.items()
        }
        save(directory, parts.sections, parts.step, parts.facts, items)

    return commit


def _inner(parts: Parts, place: tuple[Any, ...]) -> Any:
    tree = parts.tree(place[0])
    for key in place[1:-1]:
        tree = tree[key]
    return tree


def _put(place: tuple[Any, ...], value: Any) -> Callable[[Path], None]:
    def edit(parts: Parts) -> None:
        if len(place) == 1:
            parts.sections[place[0]] = value
        else:
            _inner(parts, place)[place[-1]] = value

    return rewritten(edit)


def _drop(place: tuple[Any, ...]) -> Callable[[Path], None]:
    return rewritten(lambda parts: _inner(parts, place).pop(place[-1]))


def _extra(place: tuple[Any, ...], key: Any) -> Callable[[Path], None]:
    def edit(parts: Parts) -> None:
        _inner(parts, (*place, key))[key] = 1

    return rewritten(edit)


WRONG: dict[str, tuple[tuple[tuple[Any, ...], ...], tuple[Any, ...]]] = {
    "counter": (COUNTERS, (-1, None, "6", 1.5, [], {})),
    "fraction": (FRACTIONS, ("1", [], {})),
    "text": (TEXTS, (None, 1, "nothing", [], {})),
    "mapping": (MAPPINGS, (None, [], "x", 1)),
    "list": (LISTS, (None, {}, "x", 1, ["x"], [[1.0]])),
    "other": (OTHERS, ("x", [1], {})),
}

MAY_BE_MISSING = {
    ("optimizer", "param_groups", 0, "initial_lr"),  # without a schedule
    ("data", "started_with", "numpy"),  # where numpy was not loaded
    ("gradients", "blocks.0.up.weight"),  # a parameter that the loss did not reach
    ("gradients", "head.bias"),
}
MAY_HAVE_MORE = {
    ("optimizer", "param_groups", 0),  # settings of a scheduler
    ("optimizer", "state", 0),  # a plugin's part of the state
}
MAY_BE: tuple[tuple[str, Any], ...] = (
    ("data", None),  # a run that was stepped by hand
    ("gradients", {}),  # after `zero_grad` by hand
    ("extra", {}),
)
"""What a run may have written, so that nobody can tell that it was forged."""

RETYPED: dict[str, Callable[[torch.Tensor], Any]] = {
    "float64": torch.Tensor.double,
    "int64": torch.Tensor.long,
    "bool": torch.Tensor.bool,
    "complex": lambda tensor: tensor.to(torch.complex64),
    "another dimension": lambda tensor: tensor[None],
    "longer": lambda tensor: torch.cat([tensor.reshape(-1), tensor.reshape(-1)]),
    "empty": lambda tensor: tensor.reshape(-1)[:0],
    "transposed": lambda tensor: tensor.reshape(
        -1, tensor.shape[-1] if tensor.ndim else 1
    ).mT.contiguous(),
    "a number": lambda tensor: float(tensor.reshape(-1)[0]),
    "none": lambda tensor: None,
    "a list": torch.Tensor.tolist,
}
IN_A_STREAM = {"a number", "none", "a list"}
"""What a file of tensors cannot hold."""


def _name(place: tuple[Any, ...]) -> str:
    return ".".join(map(str, place))


def _values() -> Named:
    for places, values in WRONG.values():
        for place in places:
            for value in values:
                if (place, value) == (("data", "started_with"), None):
                    continue  # what data without a random state has
                yield f"{_name(place)} = {value!r}", _put(place, value)


def _retyped(place: tuple[Any, ...], change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def edit(parts: Parts) -> None:
        inner = _inner(parts, place)
        inner[place[-1]] = change(inner[place[-1]])

    return rewritten(edit)


def _tensors() -> Named:
    for place in TENSORS:
        for what, change in RETYPED.items():
            if place[0] != "weights" or what not in IN_A_STREAM:
                yield f"{_name(place)} as {what}", _retyped(place, change)


def _keys() -> Named:
    for place in chain(COUNTERS, FRACTIONS, TEXTS, MAPPINGS, LISTS, OTHERS, TENSORS):
        if not isinstance(place[-1], int) and place not in MAY_BE_MISSING:
            yield f"without {_name(place)}", _drop(place)
    for place in (*MAPPINGS, *((name,) for name in SECTIONS)):
        if place not in MAY_HAVE_MORE:
            yield f"more in {_name(place)}", _extra(place, "more")
        if place[:2] != ("optimizer", "state") or place[2:] != (0,):
            yield f"a number as a key in {_name(place)}", _extra(place, 7)


def _sections() -> Named:
    for name in SECTIONS:
        yield f"no section {name}", _drop(("checkpoint", name))
        for value in (None, [], {}, "x", 1, -1.5, [{}]):
            if (name, value) not in MAY_BE:
                yield f"{name} = {value!r}", _put((name,), value)
    yield "a section more", _put(("checkpoint", "more"), {"x": 1})
    yield "a stream more", rewritten(lambda parts: parts.more.update(more={"x": torch.ones(2)}))
    yield "no weights", rewritten(lambda parts: parts.weights.clear())
    yield "two weights exchanged", rewritten(_exchanged)
    extra = torch.ones(3)
    yield "a weight more", rewritten(lambda parts: parts.weights.update(more=extra))
    for value in (0, -1, 1.5, "1", [], {}, 2**70):
        yield f"threads = {value!r}", _put(("facts", "threads"), value)
    for value in (0, -1, 1.5, "1", None, [], 99):
        yield f"version of ema = {value!r}", _put(("facts", "plugins", "ema"), value)
    for value in (None, [], {}, "x", 1):
        yield f"facts.plugins = {value!r}", _put(("facts", "plugins"), value)
    yield "no threads", _drop(("facts", "threads"))
    yield "no plugins", _drop(("facts", "plugins"))
    yield "a plugin less", _drop(("facts", "plugins", "ema"))
    yield "a plugin more", _put(("facts", "plugins", "more"), 1)
    yield "another rate", _put(("config", "optimizer", "lr"), 0.5)
    yield "frozen weights", _put(("facts", "frozen"), "0" * 64)
    yield "frozen weights elsewhere", _put(("facts", "frozen"), "../../mine/file")


def _exchanged(parts: Parts) -> None:
    one, other = "blocks.0.up.weight", "blocks.0.down.weight"
    parts.weights[one], parts.weights[other] = parts.weights[other], parts.weights[one]


RAW: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a tensor that is not there": lambda tree: {**tree, "more": {"$tensor": "/more"}},
    "a path as a tensor": lambda tree: {**tree, "more": {"$tensor": "../../../mine/file"}},
    "a tuple of nothing": lambda tree: {**tree, "more": {"$tuple": 1}},
    "a call": lambda tree: {**tree, "more": {"$call": "os.system"}},
    "an odd key": lambda tree: {**tree, "$more": 1},
    "deep": lambda tree: {**tree, "more": json.loads("[" * 200 + "]" * 200)},
    "a list": lambda tree: [tree],
}


def _raw(name: str, edit: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Edit a section's file as text: `save` would not write what comes out."""

    def commit(run: Path) -> None:
        directory = run / NEWEST
        manifest = load(directory).manifest
        files = {one: (directory / one).read_bytes() for one in manifest.files}
        files[f"{name}.json"] = json.dumps(edit(json.loads(files[f"{name}.json"]))).encode()
        with writing(directory, manifest.step, manifest.facts) as writer:
            for one, content in files.items():
                with writer.file(one) as file:
                    file.write(content)

    return commit


def _raw_sections() -> Named:
    for name in SECTIONS:
        for what, edit in RAW.items():
            yield f"{what} in {name}", _raw(name, edit)


def forged() -> Iterator[Fault]:
    """Yield every forged checkpoint."""
    for edits in (_values(), _tensors(), _keys(), _sections(), _raw_sections()):
        yield from in_turn(
            ((f"forged: {name}", edit) for name, edit in edits), newest, newest, auto
        )
