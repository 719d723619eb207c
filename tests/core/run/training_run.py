"""A run in a process of its own, for the tests that kill and starve it.

Usage: training_run.py RUN_DIRECTORY STEPS SECONDS_PER_STEP [limit]
Prints a line a step; exits as the CLI would. `limit`: no file may grow beyond a few bytes once
the run is under way.
"""

from __future__ import annotations

import resource
import signal
import sys
import time

import torch
from support import tiny_trainer

from neaptide import NeaptideError
from neaptide.api.rng import seed_all

torch.set_num_threads(1)


def say(*words: object) -> None:
    """Write a line at once, for whoever waits for it."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main(directory: str, steps: str, seconds: str, *flags: str) -> int:
    """Run to the end or to a signal; return the exit status."""
    config = {
        "run": {"dir": directory, "checkpoint_every": 3},
        "train": {"steps": int(steps)},
        "phases": {
            "warmup": {"steps": 3},
            "full": {"steps": 5},
            "predict": {"max_horizon": 5, "correction_interval": 1, "rise": 10.0},
            "correct": {"steps": 3},
        },
        "plugins": {"ema": {}, "predictor-drift": {"min_window": 4, "sample_every": 1}},
    }
    seed_all(0)  # of random and numpy, too
    trainer, batches = tiny_trainer(config)

    def observe(result: object, state: object) -> None:
        step = trainer.state.step
        if "limit" in flags and step in {4, 10}:
            # SIGXFSZ would kill: ignored, a write fails as it does on a full disk.
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            soft = 4096 if step == 4 else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))
        say("step", step)
        time.sleep(float(seconds))

    try:
        with trainer:
            say("digest", trainer.fit(batches, resume="auto", observe=observe)["digest"])
    except NeaptideError as error:
        say("stopped:", error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
