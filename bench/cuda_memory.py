"""Measure the bytes of a GPU that CUDA takes beside tensors: its context, cuBLAS's workspaces.

    python bench/cuda_memory.py [--json PATH]

Each row is an operation and the bytes that torch's allocator keeps after its first call.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

NO_GPU = 2


def kept(action: Callable[[], object]) -> int:
    """Return the bytes that stay after an action whose result is dropped."""
    before = torch.cuda.memory_allocated()
    action()
    torch.cuda.synchronize()
    time.sleep(0.1)  # the backward's thread drops its tensors a little later
    return torch.cuda.memory_allocated() - before


def main() -> int:
    """Measure, print a table, write JSON; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures here")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"cuda_memory: torch {torch.__version__} finds no GPU", file=sys.stderr)
        return NO_GPU
    one = torch.ones(64, 64, device="cuda")
    weight = torch.ones(64, 64, device="cuda", requires_grad=True)
    found = {
        "product": kept(lambda: one @ one),
        "product with a bias": kept(lambda: functional.linear(one, one, one[0])),
        "backward of a product": kept(lambda: torch.autograd.grad((one @ weight).sum(), weight)),
        "attention": kept(lambda: functional.scaled_dot_product_attention(*[one[None, None]] * 3)),
    }
    free, total = torch.cuda.mem_get_info()
    found["context"] = total - free - torch.cuda.memory_reserved()
    print("| what | bytes |\n|---|---|")
    print("\n".join(f"| {name} | {count:,} |" for name, count in found.items()))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
