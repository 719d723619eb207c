"""Measure the rates of this machine, as a profile that the simulated GPU and planners read.

    python bench/machine_profile.py --json profile.json [--folder DIR] [--tiny]

Times of the device are medians by CUDA events, times of the host by its clock. Needs torch and a
GPU. Takes about a minute, 2 GiB of device memory, 4 GiB of RAM and 2 GiB of disk in `--folder`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch

from neaptide_toolkit.machine.measuring import TINY, Sizes, profile

NO_GPU = 2


def main() -> int:
    """Measure, print a table, write JSON; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the profile here")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="where the disk is measured",
    )
    parser.add_argument("--tiny", action="store_true", help="small sizes: a test of this script")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"machine_profile: torch {torch.__version__} finds no GPU", file=sys.stderr)
        return NO_GPU
    sizes = TINY if options.tiny else Sizes()
    found = profile(sizes, torch.device("cuda", 0), options.folder)
    print(f"# {found['name']}\n\n| rate | figure | source |\n|---|---|---|")
    for name, value in found["rates"].items():
        print(f"| {name} | {value:.3g} | {found['sources'][name]} |")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
