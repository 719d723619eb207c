"""Forks processes that save checkpoints until they are killed: `saving_in_a_loop.py ROOT`.

Each line on stdin starts one and answers its pid, or (`wait`) reaps it. The n-th save writes n into
every part of `ROOT/step-00000001`; once it has returned, n is appended to `ROOT/saved`.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import torch

from neaptide.checkpoint import TensorItem, load, save


def save_for_ever(root: Path, first: int) -> None:
    log = os.open(root / "saved", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    number = first
    while True:
        weight = torch.full((300, 1000), number)
        item = TensorItem("w", weight.dtype, (300, 1000), lambda weight=weight: nullcontext(weight))
        state = {"number": number, "moments": torch.full((50_000,), number)}
        facts = {"number": number}
        save(root / "step-00000001", {"state": state}, 1, facts, {"weights": [item]})
        os.write(log, f"{number}\n".encode())
        number += 1


def check(root: Path) -> int:
    """Return the number every part of the checkpoint holds."""
    loaded = load(root / "step-00000001")
    state = loaded.section("state")
    found = {loaded.manifest.facts["number"], state["number"]}
    found |= {*state["moments"].tolist(), *loaded.tensors("weights")["w"].flatten().tolist()}
    (number,) = found
    return int(number)


def main(root: Path) -> None:
    child = 0
    for line in sys.stdin:
        if line == "wait\n":
            os.waitpid(child, 0)
            answer = check(root)
        else:
            child = answer = os.fork()
            if child == 0:
                save_for_ever(root, int(line))
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
