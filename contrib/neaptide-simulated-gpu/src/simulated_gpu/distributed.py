"""Process groups of `torch.distributed` among processes with a simulated device each.

`init_process_group("nccl")`, or `"simulated"`, makes one. The bytes go through gloo; order and time
are those of the simulated devices and of the link between them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch.cuda import nccl
from torch.distributed import distributed_c10d as c10d

from simulated_gpu import _C


class Options:
    """In place of NCCL's options: only the timeout has an effect."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:  # noqa: FBT001, FBT002
        self.is_high_priority_stream = is_high_priority_stream
        self._timeout = timedelta(minutes=10)


def _of_the_cpu(store: c10d.Store, rank: int, size: int, options: Options) -> Any:
    return c10d.ProcessGroupGloo(store, rank, size, options._timeout)  # noqa: SLF001


def _create(store: c10d.Store, rank: int, size: int, timeout: timedelta) -> Any:
    options = Options()
    options._timeout = timeout  # noqa: SLF001
    return _C.ProcessGroup(store, rank, size, options)


def install() -> None:
    """Register the backend `simulated`, and have it for the name `nccl`."""
    if hasattr(_C, "ProcessGroup"):
        return
    _C.define_process_group(_of_the_cpu)
    _C.ProcessGroup.Options = Options
    c10d.Backend.register_backend("simulated", _create, devices=["cuda"])
    c10d.ProcessGroupNCCL = _C.ProcessGroup
    c10d._NCCL_AVAILABLE = True  # noqa: SLF001
    nccl.version = lambda: ()  # torch asks for it where a collective fails
