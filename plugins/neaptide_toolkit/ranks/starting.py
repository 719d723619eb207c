"""Starts the processes of a run on this machine, as torchrun does."""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from neaptide.errors import NeaptideError

if TYPE_CHECKING:
    from collections.abc import Sequence


def start(processes: int, arguments: Sequence[str]) -> int:
    """Run `python -m neaptide` with `arguments` in `processes` processes; return the exit code.

    When one fails, the others are ended.

    Raises:
        NeaptideError: a process was ended by a signal.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun does so, with a warning
    logging.disable(logging.ERROR)  # of torchrun: a failure is told by its process, or below
    own = ["--standalone", "--nproc-per-node", str(processes), "-m", "neaptide"]
    try:
        torchrun.main([*own, *arguments])
    except SignalException as error:
        return 128 + int(error.sigval)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode >= 0:  # it has told why
            return failure.exitcode
        name = signal.Signals(-failure.exitcode).name
        msg = (
            f"process {rank} (pid {failure.pid}) was ended by {name}, so the others were stopped; "
            f"go on with --resume auto"
        )
        raise NeaptideError(msg) from None
    finally:
        logging.disable(logging.NOTSET)
    return 0
