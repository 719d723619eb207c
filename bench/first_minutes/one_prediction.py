"""Prints the row of one configuration of `scale.py`, measured on the simulated device.

python -m simulated_gpu --profile PROFILE bench/first_minutes/one_prediction.py KEY
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import simulated_gpu
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scaling.configurations import configurations
from scaling.one import measure


def main(key: str) -> int:
    """Measure; return the exit status."""
    every = configurations(tiny=key.startswith("tiny-"))
    chosen = next(each for each in every if each.key == key)
    with simulated_gpu.fake_data():
        row = measure(chosen, torch.device("cuda", 0))
        gc.collect()  # no tensor may be left on the device
    print(json.dumps(row))
    if row["outcome"] == "failed":
        print(row["reason"], file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
