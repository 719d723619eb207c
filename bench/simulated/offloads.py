"""Time a step and its memory beside FSDP2's CPU offload and torchao's, on the simulated GPU.

    python bench/simulated/offloads.py --json docs/benchmarks/offloads.json \
        --page docs/benchmarks/scale.md

The programs are those of `scale.py`, unchanged. Tensors of the device have no values; those of the
host are real, and take this machine's RAM: 16 bytes a parameter of FSDP2. Each program runs in a
process of its own, on one card after the other, and its row is kept at once: a rerun makes those
that are missing. Every figure is simulated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scaling.configurations import SHAPES, Configuration
from scaling.needed_bytes import PROCESS, host
from scaling.table import put_into

MODELS = {"124m": 12, "1.5b/4": 12}
"""Blocks of each model. The second is the 1.5B model with a quarter of its blocks."""
SUBJECTS = {
    "streamed": "layer-streaming",
    "resident": "plain PyTorch",
    "fsdp2": "FSDP2, `CPUOffloadPolicy`",
    "torchao": "torchao, `CPUOffloadOptimizer`",
}
CARDS = ("h200", "a100", "rtx4090", "rtx3090", "rtx4080", "rtx4070", "t4")
TOKENS, SEQUENCE = 16_384, 2048
STEPS = 2
"""On each card; the last one counts."""
ROOM = 1 << 40
"""Bytes of the card: no program is refused."""
UNSEEN = 0.005
BEGIN, END = "<!-- offloads: begin -->", "<!-- offloads: end -->"


def configuration(model: str, subject: str) -> Configuration:
    """Return a configuration of `scale.py`."""
    name, *_ = model.split("/")
    SHAPES[model] = replace(SHAPES[name], blocks=MODELS[model])
    master = "weights" if subject == "torchao" else "split"
    return Configuration("C", model, None, TOKENS, SEQUENCE, subject, master=master)


def made(model: str, subject: str) -> NoReturn:
    """Train in this process; print the peaks, and the seconds of a step by card."""
    import simulated_gpu  # noqa: PLC0415 - it becomes the simulated machine
    import torch  # noqa: PLC0415 - after it
    from scaling.decoder import batch_of  # noqa: PLC0415
    from scaling.subjects import SUBJECTS as PROGRAMS  # noqa: PLC0415

    from neaptide_toolkit.machine import profiles  # noqa: PLC0415 - it imports torch

    one, device = configuration(model, subject), torch.device("cuda", 0)
    simulated_gpu.configure(profiles.path_of(CARDS[0]), capacity=ROOM)
    with simulated_gpu.fake_data():
        program = PROGRAMS[subject](one, device, 1)
        batch = batch_of(one.shape, *one.batch, device, 0)
        for _ in range(STEPS):  # blocks learn their order, optimizers make their state
            program.step(batch)
        torch.cuda.reset_peak_memory_stats()
        cards = {}
        for card in CARDS:
            torch.cuda.synchronize()
            simulated_gpu.configure(profiles.path_of(card), capacity=ROOM)
            for _ in range(STEPS):
                start = simulated_gpu.statistics()
                program.step(batch)
                torch.cuda.synchronize()
            end = simulated_gpu.statistics()
            cards[card] = {
                "seconds": end["seconds"] - start["seconds"],
                "host": end["host_worked"] - start["host_worked"],
                **{name: end["busy"][name] - start["busy"][name] for name in end["busy"]},
            }
        row = {
            "model": model,
            "parameters": one.shape.parameters,
            "subject": subject,
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
            "ram": sum(host(one).values()) - PROCESS,
            "races": len(simulated_gpu.races()),
            "cards": cards,
        }
        print(json.dumps(row), flush=True)
        os._exit(0)  # tensors are on the device still


def in_a_process(model: str, subject: str) -> dict[str, Any]:
    """Train in a process of its own; return its row, or one with its error."""
    program = ["-W", "ignore", "-m", "simulated_gpu", __file__]
    command = [sys.executable, *program, "--one", model, subject]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode:
        *_, last = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        return {"model": model, "subject": subject, "error": last[:200]}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Return the rows as Markdown: peaks, and tokens a second by card."""
    head = ("model", "program", "card GiB: allocated", "reserved", "RAM GiB", *CARDS)
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows.values():
        first = (row["model"], SUBJECTS[row["subject"]])
        if "error" in row:
            cells = [row["error"].replace("|", "/"), *[""] * (len(head) - 3)]
        else:
            cells = [f"{row[kind] / 2**30:.1f}" for kind in ("allocated", "reserved", "ram")]
            cells += [_cell(row["cards"][card]) for card in CARDS]
        lines.append("| " + " | ".join((*first, *cells)) + " |")
    return "\n".join(lines)


def _cell(card: dict[str, float]) -> str:
    share = card["host"] / card["seconds"]
    return f"{TOKENS / card['seconds']:,.0f}" + (f", host {share:.2f}" if share > UNSEEN else "")


def main() -> int:
    """Make the rows that are missing, and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--models", default=",".join(MODELS), help="such as `124m`")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        made(*given.one)
    there = given.json is not None and given.json.exists()
    rows: dict[str, dict[str, Any]] = json.loads(given.json.read_text("utf-8")) if there else {}
    for model in given.models.split(","):
        for subject in SUBJECTS:
            key = f"{model} {subject}"
            if "cards" not in rows.get(key, {}):
                rows[key] = in_a_process(model, subject)
                if given.json:
                    given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if given.page:
        put_into(given.page, table(rows), BEGIN, END)
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
