"""Bytes by (phase, moment, tier): the ledger that estimates, and what a tensor holds."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, get_args

import attrs
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from neaptide.io.units import size
from neaptide.text import called, one_line, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Tier = Literal["device", "host"]
"""`device` is what computes, `host` is RAM; without an accelerator all of it is `device`."""

Moment = Literal["forward", "backward", "update", "predict", "evaluate", "save"]

MOMENTS: tuple[Moment, ...] = ("forward", "backward", "update", "predict", "evaluate", "save")


def _named(moments: frozenset[Moment]) -> str:
    """Return the moments in their order, or those that are missing where these are fewer."""
    held = [moment for moment in MOMENTS if moment in moments]
    missing = [moment for moment in MOMENTS if moment not in moments]
    if len(missing) < len(held):
        return f"all but {', '.join(missing)}" if missing else "all"
    return ", ".join(held)


@attrs.frozen
class Entry:
    """Bytes one owner holds on one tier during some moments of the phase."""

    owner: str
    """Who holds them: `core`, or a plugin's name."""
    kind: str
    """What they are: `weights`, `gradients`, `optimizer.state`, `activations`, …"""
    tier: Tier
    bytes: int
    moments: frozenset[Moment] = frozenset(MOMENTS)

    __repr__ = one_line


@attrs.frozen
class Ledger:
    """What one phase is expected to hold. Immutable: plugins return a changed copy.

    Plugins are folded over it in resolved order, so one that moves weights to the host sees what
    those before it left.
    """

    entries: tuple[Entry, ...] = ()

    def __repr__(self) -> str:
        peaks = (f"{tier} {size(self.peak(tier)[1])}" for tier in self._tiers())
        return f"Ledger({', '.join(peaks)})"

    def __str__(self) -> str:
        """Write the peak of each tier, then a table of who holds what, most bytes first."""
        lines = [
            f"{tier:<6}  peak {size(nbytes)} in {moment}"
            for tier in self._tiers()
            for moment, nbytes in [self.peak(tier)]
        ]
        if not self.total(kind="activations"):
            lines.append("activations depend on the batch and are not in it")
        held: Counter[tuple[str, ...]] = Counter()
        for entry in self.entries:
            held[entry.tier, entry.kind, entry.owner, _named(entry.moments)] += entry.bytes
        most = sorted(held.items(), key=lambda one: (one[0][0], -one[1]))
        sizes = [size(nbytes) for _, nbytes in most]
        width = max(map(len, ["bytes", *sizes]))
        rows = [("tier", "kind", "owner", "bytes".rjust(width), "held in")]
        for ((tier, kind, owner, moments), _), written in zip(most, sizes, strict=True):
            rows.append((tier, kind, owner, written.rjust(width), moments))
        return "\n".join([*lines, "", table(rows)])

    def _tiers(self) -> list[Tier]:
        return [tier for tier in get_args(Tier) if self.total(tier=tier)]

    def add(
        self,
        owner: str,
        kind: str,
        tier: Tier,
        nbytes: int,
        moments: Iterable[Moment] = MOMENTS,
    ) -> Ledger:
        """Return a ledger with `nbytes` more bytes held by `owner`."""
        entry = Entry(owner, kind, tier, int(nbytes), frozenset(moments))
        return Ledger((*self.entries, entry))

    def move(
        self,
        kind: str,
        source: Tier,
        target: Tier | None,
        nbytes: int | None = None,
        moments: Iterable[Moment] = MOMENTS,
    ) -> Ledger:
        """Return a ledger in which what is of `kind` on `source` lies on `target`.

        All of it, or the first `nbytes` of it, during `moments`. A target of None gives it up.
        """
        during, left, moved = frozenset(moments), nbytes, []
        for entry in self.entries:
            if (entry.kind, entry.tier) != (kind, source) or not entry.moments & during:
                moved.append(entry)
                continue
            part = entry.bytes if left is None else min(left, entry.bytes)
            left = None if left is None else left - part
            if target is not None:
                there = attrs.evolve(entry, tier=target, bytes=part)
                moved.append(attrs.evolve(there, moments=entry.moments & during))
            moved += [
                attrs.evolve(entry, bytes=part, moments=entry.moments - during),
                attrs.evolve(entry, bytes=entry.bytes - part),
            ]
        return Ledger(tuple(entry for entry in moved if entry.bytes and entry.moments))

    def scale(self, kind: str, factor: float) -> Ledger:
        """Return a ledger in which everything of `kind` takes `factor` times its bytes."""
        return Ledger(
            tuple(
                attrs.evolve(entry, bytes=round(entry.bytes * factor))
                if entry.kind == kind
                else entry
                for entry in self.entries
            )
        )

    def total(
        self,
        *,
        tier: Tier | None = None,
        moment: Moment | None = None,
        owner: str | None = None,
        kind: str | None = None,
    ) -> int:
        """Return the bytes of the entries that match; None matches all."""
        return sum(
            entry.bytes
            for entry in self.entries
            if (tier is None or entry.tier == tier)
            and (moment is None or moment in entry.moments)
            and (owner is None or entry.owner == owner)
            and (kind is None or entry.kind == kind)
        )

    def peak(self, tier: Tier) -> tuple[Moment, int]:
        """Return the moment at which `tier` holds most, and the bytes it then holds."""
        totals = {moment: self.total(tier=tier, moment=moment) for moment in MOMENTS}
        worst = max(MOMENTS, key=lambda moment: totals[moment])
        return worst, totals[worst]


@attrs.frozen
class MemorySample:
    """What the process holds now, in bytes."""

    device_bytes: int | None
    """Live tensors by torch's allocator on the accelerator; None on a machine without one."""
    host_bytes: int
    """Resident set size of the process."""


def named_by_bytes(store: Any) -> str:
    """Write a store by its weights and optimizer, on one line: set as its `__repr__`."""
    spans = store.spans()
    weights = size(sum(span.bytes for span in spans))
    return called(store, f"{len(spans)} spans", weights, type(store.optimizer).__name__)


def tier_of(device: torch.device, compute: torch.device) -> Tier:
    """Return the tier of a tensor on `device` in a run that computes on `compute`."""
    return "device" if device.type == compute.type else "host"


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the distinct storages behind `tensors`.

    Of a wrapper of other tensors and of a sparse tensor the parts count. What has no memory (meta,
    fake) counts as if it had.
    """
    return sum(dict(storage for tensor in tensors for storage in _storages(tensor)).values())


def _storages(tensor: torch.Tensor) -> Iterator[tuple[object, int]]:
    """Yield what tells a storage from others, and its bytes."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _storages(getattr(tensor, name))
    elif tensor.layout is torch.sparse_coo:
        yield from _storages(tensor._indices())  # noqa: SLF001 - the public one refuses duplicates
        yield from _storages(tensor._values())  # noqa: SLF001 - as above
    elif tensor.layout in {torch.sparse_csr, torch.sparse_bsr}:
        for part in (tensor.crow_indices(), tensor.col_indices(), tensor.values()):
            yield _storage(part)
    elif tensor.layout in {torch.sparse_csc, torch.sparse_bsc}:
        for part in (tensor.ccol_indices(), tensor.row_indices(), tensor.values()):
            yield _storage(part)
    else:
        yield _storage(tensor)


def _storage(tensor: torch.Tensor) -> tuple[object, int]:
    try:
        storage = tensor.untyped_storage()
    except NotImplementedError:  # of another layout than strided
        return id(tensor), tensor.numel() * tensor.element_size()
    address: int | None = None
    if storage.device.type != "meta":  # where a fake tensor's lies, which warns when asked
        with contextlib.suppress(RuntimeError):  # of a wrapper that does not show its parts
            address = storage.data_ptr()
    if address is None:
        return storage._cdata, storage.nbytes()  # noqa: SLF001 - the storage's identity
    return (storage.device, address), storage.nbytes()


def nested_tensors(tree: object) -> Iterable[torch.Tensor]:
    """Yield every tensor in nested dicts, lists and tuples."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from nested_tensors(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from nested_tensors(value)


def mapped(tree: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return `tree` with `change` of every tensor in nested dicts, lists and tuples."""
    if isinstance(tree, torch.Tensor):
        return change(tree.detach())
    if isinstance(tree, dict):
        return {key: mapped(value, change) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(mapped(value, change) for value in tree)
    return tree
