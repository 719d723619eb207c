"""A simulated CUDA device for a build of torch without CUDA.

Import it before torch. Tensors on `cuda` then have memory of their own, every operation runs there
by the CPU's kernel, and streams, events, pinned memory, the caching allocator and time are
modelled. What no event orders is told as a race.
"""

from __future__ import annotations

from simulated_gpu import _load

_load.library()

from simulated_gpu import _exit, _on_import, cuda, history, reads, recurrent  # noqa: E402
from simulated_gpu.host import host_operation, host_thread, on_host_thread  # noqa: E402
from simulated_gpu.machine import (  # noqa: E402
    configure,
    fake_data,
    name,
    rates,
    reset,
    statistics,
    timeline,
    use_shape_cache,
)
from simulated_gpu.races import RaceError, detect_races, races  # noqa: E402

cuda.install()
recurrent.install()
reads.install()
history.install()
_exit.install()
_on_import.install()

__all__ = [
    "RaceError",
    "configure",
    "detect_races",
    "fake_data",
    "host_operation",
    "host_thread",
    "name",
    "on_host_thread",
    "races",
    "rates",
    "reset",
    "statistics",
    "timeline",
    "use_shape_cache",
]
