"""Export a model as safetensors files in the layout of transformers, one tensor at a time."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from neaptide.checkpoint import TensorItem
from neaptide.checkpoint.recovery import temporary_of
from neaptide.checkpoint.safetensors_stream import write_tensors
from neaptide.errors import CheckpointError
from neaptide.io.folder import Folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from torch import nn

    from neaptide import ParameterStore

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_SUFFIX = ".safetensors"

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def export(
    named: Iterable[TensorItem],
    directory: Path | str,
    *,
    max_shard_bytes: int = 5 * 10**9,
    tied: Mapping[str, str] | None = None,
    beside: Callable[[Path], object] | None = None,
    file: str = SINGLE,
) -> list[Path]:
    """Write a new directory of safetensors files and return their paths.

    Tensors that fit in one file go to `model.safetensors`; otherwise the files are
    `model-00001-of-0000N.safetensors` and an index. Each tensor is loaded once, when its bytes are
    written. If the export fails, no directory remains.

    Args:
        named: the tensors, each with a unique name.
        directory: a directory that does not exist yet or is empty.
        max_shard_bytes: limit of one file's tensors; a larger tensor gets its own file.
        tied: maps additional names to names in `named`. The metadata of the files lists the
            additional names, as the safetensors library does. No tensor is written twice.
        beside: writes further files into the directory that it is given, before this directory
            gets its name.
        file: the name of a single file.

    Raises:
        CheckpointError: a name or dtype cannot be saved, `directory` is not new or empty, or the
            disk is full.
    """
    if max_shard_bytes < 1:
        msg = f"max_shard_bytes must be at least 1 (got {max_shard_bytes})"
        raise ValueError(msg)
    items, aliases = [TensorItem(*one) for one in named], dict(tied or {})
    _check_names([item.name for item in items], aliases)
    directory = Path(directory).resolve()
    shards = _split(items, max_shard_bytes, file.removesuffix(_SUFFIX))
    temporary = temporary_of(directory)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            msg = f"{directory} exists already; export to a new directory, or move it away"
            raise CheckpointError(msg)
        temporary.mkdir()
        for name, shard in shards.items():
            _write(temporary / name, shard, aliases)
        if len(shards) > 1:
            _write_index(temporary / f"{file}.index.json", shards)
        if beside is not None:
            beside(temporary)
        Folder(temporary).sync()
        temporary.rename(directory)
        Folder(directory.parent).sync()
    except OSError as error:
        way_out = "free space" if error.errno in _FULL else "check the disk and its permissions"
        msg = f"cannot export to {directory}: {error.strerror}; {way_out}, or export elsewhere"
        raise CheckpointError(msg) from error
    finally:
        with suppress(OSError):
            shutil.rmtree(temporary)
    return [directory / name for name in shards]


def export_model(
    model: nn.Module,
    store: ParameterStore,
    directory: Path | str,
    *,
    max_shard_bytes: int = 5 * 10**9,
) -> list[Path]:
    """Write all parameters and persistent buffers of a trained model as safetensors files.

    Tensors may be on the device or in RAM.

    Args:
        model: `trainer.model`.
        store: `trainer.store`.
        directory: see `export`.
        max_shard_bytes: see `export`.

    Returns:
        The paths of the safetensors files. The path of the index is not included.
    """
    store.drain()
    spans = store.spans()
    items = [
        TensorItem(span.name, span.dtype, span.shape, partial(store.loan, span, "read"))
        for span in spans
    ]
    taken = {name for span in spans for name in (span.name, *span.tied)}
    for name, value in model.state_dict().items():
        if name not in taken and isinstance(value, torch.Tensor):
            lent = partial(_as_it_is, value)
            items.append(TensorItem(name, value.dtype, tuple(value.shape), lent))
    tied = {alias: span.name for span in spans for alias in span.tied}
    return export(items, directory, max_shard_bytes=max_shard_bytes, tied=tied)


def _as_it_is(tensor: torch.Tensor) -> AbstractContextManager[torch.Tensor]:
    return nullcontext(tensor)


def _check_names(names: list[str], aliases: Mapping[str, str]) -> None:
    taken: set[str] = set()
    for name in (*names, *aliases):
        if name in taken:
            msg = f"two tensors are named {name!r:.100}; give each name once"
            raise CheckpointError(msg)
        taken.add(name)
    for alias, name in aliases.items():
        if name not in names:
            msg = f"{alias!r:.100} is tied to {name!r:.100}, which is not exported; export it"
            raise CheckpointError(msg)


def _split(items: list[TensorItem], most: int, stem: str) -> dict[str, list[TensorItem]]:
    """Return the tensors of each file, in order; each file contains as many tensors as fit."""
    shards: list[list[TensorItem]] = [[]]
    held = 0
    for item in items:
        size = _bytes(item)
        if shards[-1] and held + size > most:
            shards.append([])
            held = 0
        shards[-1].append(item)
        held += size
    if len(shards) == 1:
        return {f"{stem}{_SUFFIX}": shards[0]}
    return {
        f"{stem}-{number:05}-of-{len(shards):05}{_SUFFIX}": shard
        for number, shard in enumerate(shards, start=1)
    }


def _write(path: Path, items: list[TensorItem], aliases: Mapping[str, str]) -> None:
    here = {item.name for item in items}
    metadata = {alias: name for alias, name in aliases.items() if name in here}
    with path.open("xb") as file:
        write_tensors(file, items, metadata)
        file.flush()
        os.fsync(file.fileno())


def _write_index(path: Path, shards: Mapping[str, list[TensorItem]]) -> None:
    total = sum(_bytes(item) for shard in shards.values() for item in shard)
    files = {item.name: file for file, shard in shards.items() for item in shard}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))}
    with path.open("x", encoding="ascii") as file:
        json.dump(index, file, indent=2)
        file.flush()
        os.fsync(file.fileno())


def _bytes(item: TensorItem) -> int:
    return math.prod(item.shape) * item.dtype.itemsize
