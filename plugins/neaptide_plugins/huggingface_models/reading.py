"""Reads the files of weights into the page cache, ahead of what uses them."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
import sys
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from neaptide.checkpoint.safetensors_header import read_header
from neaptide.errors import CheckpointError
from neaptide_toolkit.machine.facts import memory
from neaptide_toolkit.machine.mappings import populate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

    from neaptide.checkpoint.safetensors_header import TensorEntry

_BLOCK = 8 * 2**20
_EXPERT = re.compile(r"experts\.\d")
_SMALL = 64 << 10
_PART = 0.5
"""The largest part of the free memory that files may take in the cache."""
_SKIPPED = OSError, ValueError, KeyError, AttributeError, TypeError, CheckpointError
"""Errors of damaged files: what loads the model says what is wrong."""


def files_of(folder: Path) -> list[Path]:
    """Return the files of weights that a model in `folder` is loaded from."""
    paths = [folder / SAFE_WEIGHTS_NAME]
    with suppress(*_SKIPPED):
        index = json.loads((folder / SAFE_WEIGHTS_INDEX_NAME).read_bytes())
        paths = [folder / name for name in dict.fromkeys(index["weight_map"].values())]
    return [path for path in paths if path.is_file()]


def fit_in_memory(paths: Sequence[Path]) -> bool:
    """Return whether the files take at most half of the free memory; False if it is unknown."""
    room = memory().room
    return room is not None and sum(path.stat().st_size for path in paths) <= _PART * room


def are_mapped(paths: Sequence[Path], wanted: torch.dtype | None) -> bool:
    """Return whether transformers maps the tensors of the files as they are.

    It does not if it converts a dtype to `wanted` (None: to that of the files), or merges tensors
    of one expert each to one of all. It then reads the files while it builds the model.
    """
    try:
        found = {name: entry for path in paths for name, entry in _header(path)[0].items()}
    except _SKIPPED:
        return False
    dtypes = {entry.dtype for entry in found.values() if entry.dtype.is_floating_point}
    return len(dtypes) == 1 and wanted in {None, *dtypes} and not any(map(_EXPERT.search, found))


def read_ends(paths: Sequence[Path]) -> None:
    """Read the ends of each tensor, and small ones as a whole.

    transformers maps the files and touches a page of each tensor. That would wait for the disk each
    time, and read the neighbours of the page, too.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    with suppress(*_SKIPPED):
        for path in paths:
            entries, begin = _header(path)
            with path.open("rb", buffering=0) as file:
                number = file.fileno()
                os.posix_fadvise(number, 0, 0, os.POSIX_FADV_RANDOM)  # a page, not its neighbours
                for entry in entries.values():
                    size = entry.stop - entry.start
                    os.pread(number, size if size <= _SMALL else 1, begin + entry.start)
                    os.pread(number, 1, begin + max(entry.start, entry.stop - 1))


def read_ahead(paths: Sequence[Path]) -> Thread | None:
    """Begin to read the files in a thread, and return it.

    None: the system has no `posix_fadvise`.
    """
    if not hasattr(os, "posix_fadvise"):
        return None
    thread = Thread(target=_read, args=(paths,), name="read-ahead", daemon=True)
    thread.start()
    return thread


def _header(path: Path) -> tuple[dict[str, TensorEntry], int]:
    with path.open("rb", buffering=0) as file:
        return read_header(file.fileno(), path.stat().st_size, str(path))


def _read(paths: Sequence[Path]) -> None:
    with suppress(*_SKIPPED):
        for path in paths:
            with path.open("rb", buffering=0) as file:
                size = path.stat().st_size
                if size and not _mapped_in(file.fileno(), size):
                    for start in range(0, size, _BLOCK):
                        os.posix_fadvise(file.fileno(), start, _BLOCK, os.POSIX_FADV_WILLNEED)


def _mapped_in(number: int, size: int) -> bool:
    """Read a file by mapping it; return False if the system cannot.

    Page faults in order copy nothing, where `read` copies all.
    """
    if not sys.platform.startswith("linux"):
        return False
    with mmap.mmap(number, size, flags=mmap.MAP_PRIVATE) as pages:
        held = ctypes.c_char.from_buffer(pages)
        try:
            begin = ctypes.addressof(held)
            for start in range(0, size, _BLOCK):
                stop = min(start + _BLOCK, size)
                if not populate(begin + start, stop - start, write=False):
                    return False
                # A virtual machine may get memory at its first use: here, not in the model.
                _ = pages[start : stop : mmap.PAGESIZE]
            return True
        finally:
            del held  # pages in use cannot be unmapped
