"""Trains a configuration in one of several processes, and prints the most bytes that it held.

    python -c "$(cat processes_measured.py)" CONFIG.json     # with torchrun's variables

Prints JSON by moment of a step: the peak of all tensors, and the bytes that the ledger estimates.
The allocator is not asked, because threads of gloo free what this thread allocated.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from neaptide import HybridTrainer
from neaptide.hooks.enabling import configured
from neaptide.run import assembly
from neaptide_toolkit.dry_run.allocations import AllocationLog
from neaptide_toolkit.tensors import nested_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS = 3
_SECONDS = 0.5
"""Until threads of gloo have let go of the last buffers, on a machine that is busy, too."""
MOMENTS = {
    "around_forward": "forward",
    "around_backward": "backward",
    "around_optimizer_step": "update",
}


class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells a log of each storage that an operation makes."""

    def __init__(self, log: AllocationLog) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log = log

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = nested_tensors((args, kwargs))
        plain = (torch.Tensor, torch.nn.Parameter, FakeTensor)
        if any(type(one) not in plain for one in given):
            return NotImplemented  # a DTensor, which computes with ordinary tensors
        made = func(*args, **(kwargs or {}))
        known = {one.untyped_storage()._cdata for one in given}
        for one in nested_tensors(made):
            storage = one.untyped_storage()
            if not one.is_meta and type(one) is torch.Tensor and storage._cdata not in known:
                self.log.made(storage)
        return made


def listener(log: AllocationLog) -> Any:
    """Return what follows the moments of a step in a log."""

    @contextmanager
    def opened(name: str, _: str) -> Iterator[None]:
        before, log.during = log.during, MOMENTS.get(name, log.during)
        try:
            yield
        finally:
            log.during = before

    return opened


def main() -> None:
    """Measure this process."""
    config = configured(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), ())[0]
    torch.distributed.init_process_group("gloo")
    log = AllocationLog(accelerated=False)
    with log.resized(), Seen(log), HybridTrainer.from_config(config) as trainer:
        with _disable_current_modes():
            batches = [*islice(assembly.build_data(config, trainer.hooks).train, STEPS)]
        trainer.run.timeline.listen(listener(log))
        for batch in batches:
            log.during = "between"
            time.sleep(_SECONDS)
            log.during = "step"
            trainer.step(batch, phase="full")
        log.during = "estimate"
        ledger = trainer.estimate_memory("full")
    torch.distributed.destroy_process_group()
    peaks = {name: one.bytes for name, one in log.peaks("device").items()}
    if config.plugins["sharding"].stage in ("replicate", 1):
        # Gradients are added up before the span of the update begins.
        peaks["update"] = max(peaks["update"], peaks["step"])
    found = {each: (peaks[each], ledger.total(moment=each)) for each in MOMENTS.values()}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
