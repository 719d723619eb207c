"""Memory snapshots: a listing of live tensors and, on CUDA, torch's own snapshot."""

from __future__ import annotations

import json
import os
import pickle
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_kernels.accelerator import is_cuda

from .listing import Listing, live_tensors, totals

if TYPE_CHECKING:
    from torch import nn

    from neaptide.io.folder import Folder

REQUEST = "snapshot.request"
"""To request a snapshot from a running process, create a file of this name in the directory of the
snapshots."""
HISTORY_EVENTS = 100_000
"""Largest number of allocations and frees that torch's history keeps."""


class Snapshots:
    """Writes at most `limit` snapshots into `folder`.

    `snapshot-<step>-<phase>-<moment>.json` lists the tensors visible to Python. On CUDA a file
    with the same name and the suffix `.pickle` is torch's snapshot of its allocator, for
    https://pytorch.org/memory_viz.
    """

    def __init__(
        self,
        folder: Folder,
        device: torch.device,
        limit: int,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self.written: list[str] = []
        self._folder = folder
        self._device = device
        self._left = limit
        self._model = model
        self._optimizer = optimizer
        self._request: str | None = os.fspath(folder.path / REQUEST)

    def requested(self) -> bool:
        """Return whether a snapshot is requested, and remove the request."""
        if self._request is None or not os.access(self._request, os.F_OK):  # 1 us per step
            return False
        try:
            if self._folder.stat(REQUEST) is None:
                return False  # another folder is at the path now
            self._folder.unlink(REQUEST)
        except OSError:
            self._request = None  # The file cannot be removed. Do not repeat the request.
        return True

    def take(self, step: int, phase: str, moment: str, reason: str, rss: int) -> str | None:
        """Write a snapshot and return the name of its listing; None if `limit` is reached.

        Args:
            step: the current update.
            phase: the current phase.
            moment: the moment within the step.
            reason: the reason for the snapshot; it is written into the file.
            rss: resident set size in bytes; it is written into the file, to compare it with the
                listed bytes.
        """
        if self._left == 0:
            return None
        self._left -= 1
        name = f"snapshot-{step:08}-{phase}-{moment}"
        listing = live_tensors(self._model, self._optimizer)
        content: dict[str, Any] = {
            "step": step,
            "phase": phase,
            "moment": moment,
            "reason": reason,
            "rss_bytes": rss,
            "listed_bytes": totals(listing.entries),
            **_left_out(listing),
            "tensors": [attrs.asdict(entry) for entry in listing.entries],
        }
        self._write(f"{name}.json", (json.dumps(content, indent=1) + "\n").encode())
        if is_cuda(self._device):
            # What `torch.cuda.memory._dump_snapshot` writes.
            self._write(f"{name}.pickle", pickle.dumps(torch.cuda.memory._snapshot()))  # noqa: SLF001 - torch's only way
        return f"{name}.json"

    def _write(self, name: str, content: bytes) -> None:
        self._folder.replace(name, content)
        self.written.append(name)


def _left_out(listing: Listing) -> dict[str, str]:
    """Return the entry about tensors that are not listed. It is empty if all tensors are listed."""
    if not listing.left_out:
        return {}
    kinds = ", ".join(f"{count} {kind}" for kind, count in listing.left_out.items())
    return {"left_out": f"tensors without visible memory: {kinds}"}


class AllocationHistory:
    """Makes torch's CUDA allocator record allocations, unless it is recording already."""

    def __init__(self) -> None:
        self._ours = False

    def start(self) -> None:
        """Start recording, with Python stacks."""
        if not torch._C._cuda_isHistoryEnabled():  # noqa: SLF001 - see above
            torch.cuda.memory._record_memory_history(  # noqa: SLF001 - see above
                max_entries=HISTORY_EVENTS, stacks="python"
            )
            self._ours = True

    def stop(self) -> None:
        """Stop what `start` started; idempotent."""
        if self._ours:
            self._ours = False
            torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001 - see above
