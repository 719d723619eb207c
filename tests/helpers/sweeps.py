"""Sweeps: cases in plain PyTorch and with each exact plugin, and what came out."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import attrs
import torch
from law_ways import WAYS
from torch import nn
from torch.utils import _pytree as pytree

from neaptide import HybridTrainer, NeaptideError
from neaptide_toolkit.testing.parting import partings

if TYPE_CHECKING:
    from pathlib import Path

UPDATES = 3
EVERY_WAY: dict[str, dict[str, Any]] = {"no plugin": {}, **WAYS}
LISTED: dict[str, str] = {}
"""The name of a case and a way, and why plain PyTorch makes exactness impossible."""

Optimizers = Callable[[nn.Module], torch.optim.Optimizer]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a case that names none."""
    return torch.optim.AdamW(model.parameters(), lr=0.01)


@attrs.frozen(eq=False)
class Case:
    """A model, its loss and its batches, made anew for every run."""

    name: str
    model: Callable[[], nn.Module]
    batches: Callable[[], list[Any]]
    loss_fn: Callable[[nn.Module, Any], torch.Tensor]
    optimizer: Optimizers = adamw
    ways: dict[str, dict[str, Any]] = attrs.field(factory=lambda: EVERY_WAY)


@attrs.frozen
class Verdict:
    """What became of a case with a way."""

    case: str
    way: str
    kind: str
    """`exact`, `refused`, `listed`, `wrong`, `foreign`, or `untrainable` in plain PyTorch."""
    reason: str = ""


@attrs.frozen(eq=False)
class Trace:
    """The bits that a run leaves."""

    losses: list[bytes]
    tensors: dict[str, torch.Tensor]


def scalar_of(found: Any) -> torch.Tensor:
    """Return a loss of every tensor in `found` that can have a gradient."""
    tensors = [one for one in pytree.tree_leaves(found) if isinstance(one, torch.Tensor)]
    parts = []
    for one in tensors:
        if one.is_complex() or one.is_floating_point():
            flat = (torch.view_as_real(one) if one.is_complex() else one).flatten()
            weights = torch.linspace(0.5, 1.5, flat.numel(), dtype=flat.dtype)
            parts.append((flat * weights + flat.square()).mean().float())
    return torch.stack(parts).sum()


def _bits(loss: Any) -> bytes:
    return struct.pack("d", float(loss))


def _traced(model: nn.Module, losses: list[bytes]) -> Trace:
    named = [*model.named_parameters(), *model.named_buffers()]
    return Trace(losses, {name: one.detach().cpu().clone() for name, one in named})


def difference(expected: Trace, found: Trace) -> str:
    """Return what differs, or nothing."""
    if expected.losses != found.losses:
        return f"losses {found.losses} instead of {expected.losses}"
    return "; ".join(map(str, partings(expected.tensors, found.tensors)))


def _start(case: Case) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = case.model()
    optimizer = case.optimizer(model)
    torch.manual_seed(1)
    return model, optimizer


def plain(case: Case) -> Trace:
    """Run the loop as PyTorch's tutorials write it."""
    model, optimizer = _start(case)
    losses = []

    for batch in case.batches():

        def closure(batch: Any = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = case.loss_fn(model, batch)
            loss.backward()
            return loss

        if isinstance(optimizer, torch.optim.LBFGS):
            losses.append(_bits(optimizer.step(closure)))
        else:
            losses.append(_bits(closure().detach()))
            optimizer.step()
            optimizer.zero_grad()
    return _traced(model, losses)


def trained(case: Case, plugins: dict[str, Any], directory: Path) -> Trace:
    """Run the same loop with a trainer."""
    model, optimizer = _start(case)
    config = {"plugins": plugins, "train": {"max_skipped": 0}}
    if "profiler" in plugins:
        config["run"] = {"dir": str(directory)}
    with HybridTrainer(model, optimizer, loss_fn=case.loss_fn, config=config) as trainer:
        losses = [_bits(trainer.step(batch).loss) for batch in case.batches()]
    return _traced(model, losses)


def judged(case: Case, way: str, expected: Trace, directory: Path) -> Verdict:
    """Return what becomes of a case with a way."""
    told = f"{case.name} / {way}"
    try:
        wrong = difference(expected, trained(case, case.ways[way], directory))
    except NeaptideError as error:
        kind = "refused" if "\n" not in str(error) else "foreign"
        return Verdict(case.name, way, kind, str(error))
    except Exception as error:  # noqa: BLE001 - it is what a sweep looks for
        return Verdict(case.name, way, "foreign", f"{type(error).__name__}: {error}"[:400])
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if wrong:
        return Verdict(case.name, way, "listed" if told in LISTED else "wrong", wrong[:400])
    return Verdict(case.name, way, "exact")


def verdicts(case: Case, directory: Path) -> list[Verdict]:
    """Return what becomes of a case with each of its ways."""
    try:
        expected = plain(case)
    except Exception as error:  # noqa: BLE001 - plain PyTorch's own
        return [Verdict(case.name, "plain", "untrainable", f"{type(error).__name__}: {error}")]
    return [judged(case, way, expected, directory / "run") for way in case.ways]


def grouped(reason: str) -> str:
    """Return a reason without the names and numbers of one case."""
    short = re.sub(r"'[^']*'|`[^`]*`|\"[^\"]*\"", "…", reason)
    short = re.sub(r"\b[\w]+(\.[\w]+)*\.\d+(\.\w+)*\b", "…", short)
    return re.sub(r"\d[\d,.e-]*", "N", short)[:200]


def counted(found: Iterable[Verdict]) -> list[tuple[str, str, str, int]]:
    """Return ways, kinds and grouped reasons, and how often each came out."""
    table = Counter((one.way, one.kind, grouped(one.reason)) for one in found)
    return [(*key, number) for key, number in sorted(table.items())]


def swept(
    cases: Iterable[Case],
    part: int,
    parts: int,
    directory: Path,
    record: Callable[[str, str], None],
) -> list[str]:
    """Judge every `parts`-th case, record the counts, and return what is wrong or foreign."""
    mine = itertools.islice(cases, part, None, parts)
    found = [verdict for case in mine for verdict in verdicts(case, directory)]
    record("cases", str(len({one.case for one in found})))
    record("counts", json.dumps(counted(found)))
    return [
        f"{one.case} / {one.way}: {one.kind}: {one.reason}"
        for one in found
        if one.kind in ("wrong", "foreign")
    ]
