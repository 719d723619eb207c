"""Writes the plans of Stable Diffusion XL's UNet into docs/integrations/diffusers.md.

python docs/diffusion_plans.py            makes the plans, in three minutes, and writes the page
python docs/diffusion_plans.py --page     writes the page from the plans that there are
python docs/diffusion_plans.py --plan N   prints the plan of one way as JSON
"""
# ruff: noqa: INP001 - a script beside the pages, not a package

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from neaptide.config.tables import overlay
from neaptide.hooks.enabling import configured

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "sdxl-24gb.toml"
PAGE = ROOT / "docs" / "integrations" / "diffusers.md"
PLANS = ROOT / "docs" / "benchmarks" / "sdxl-plans.json"
BEGIN, END = "<!-- plans: begin -->", "<!-- plans: end -->"
GIB = 2**30
CARD, RAM, SYSTEM = 24, 64, 2
"""GiB of the card, of RAM, and of RAM that is left for the system."""
RATES = "rtx4090"

PARTS = ["**.transformer_blocks.*", "**.resnets.*"]
_KEPT: dict[str, Any] = {"activation-checkpointing": {"blocks": PARTS, "interval": 1}}
_HALF: dict[str, Any] = {"options": {"dtype": "bfloat16"}}
_STREAMED: dict[str, Any] = {"update": "in_backward", "clip": "lagged", "master": "split"}

WAYS: dict[str, dict[str, Any]] = {
    "all on the card, float32 weights, bf16 by `mixed-precision`, `activation-checkpointing`": {
        "model": {"options": {"dtype": "float32"}},
        "data": {"options": {"dtype": "float32"}},
        "plugins": _KEPT | {"mixed-precision": {"dtype": "bf16"}},
    },
    "all on the card, bf16 weights, `adam8bit`, `activation-checkpointing`": {
        "model": _HALF,
        "optimizer": {"name": "adam8bit", "lr": 1e-5},
        "plugins": _KEPT,
    },
    "streamed, the stages as blocks": {"plugins": {"layer-streaming": _STREAMED}},
    "streamed, as in the file": {"plugins": {"layer-streaming": {**_STREAMED, "blocks": PARTS}}},
    "as in the file, but clipped by the exact norm": {
        "plugins": {"layer-streaming": {"master": "split", "blocks": PARTS}}
    },
}
"""Ways to train, and what each adds to the file without its plugins."""


def configuration(way: str) -> dict[str, Any]:
    """Return a complete configuration as tables."""
    given = tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))
    del given["plugins"]
    return overlay(given, WAYS[way])


def planned(way: str) -> dict[str, Any]:
    """Return what a way takes: bytes by tier, seconds, and the busiest engine."""
    from neaptide_toolkit.machine import profiles  # noqa: PLC0415 - it imports torch
    from neaptide_verbs.plan.machine import PlannedMachine  # noqa: PLC0415
    from neaptide_verbs.plan.planning import plan  # noqa: PLC0415

    sys.path.insert(0, str(ROOT))
    given = configuration(way)
    given["train"]["device"] = "cpu"  # this machine needs no other
    everything = PlannedMachine(
        name=RATES, device=2**60, host=2**60, rates=profiles.load(RATES).rates
    )
    made = plan(configured(given)[0], everything)
    return {
        "device": made.peak_bytes["device"],
        "ram": made.peak_bytes["RAM"],
        "seconds": made.seconds_per_step,
        "bound": made.bound_by,
    }


def in_a_process(way: str) -> dict[str, Any]:
    """Plan in a process of its own, so that its RAM is that of one plan."""
    command = [sys.executable, __file__, "--plan", str(list(WAYS).index(way))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode:
        msg = f"{way}: {done.stderr.strip().splitlines()[-1]}"
        raise SystemExit(msg)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(known: dict[str, dict[str, Any]]) -> str:
    """Return the table of the page."""
    lines = [
        f"| way | card GiB | RAM GiB | fits {CARD} GiB and {RAM} GiB | s per update | bound by |",
        "|---|---|---|---|---|---|",
    ]
    for way in WAYS:
        one = known[way]
        fits = one["device"] <= CARD * GIB and one["ram"] <= (RAM - SYSTEM) * GIB
        sizes = f"{one['device'] / GIB:.1f} | {one['ram'] / GIB:.1f}"
        said = "yes" if fits else "no"
        lines.append(f"| {way} | {sizes} | {said} | {one['seconds']:.1f} | {one['bound']} |")
    return "\n".join(lines)


def rendered(page: str, known: dict[str, dict[str, Any]]) -> str:
    """Return the page with the table."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n\n{table(known)}\n\n{end}{after}"


def main(words: list[str]) -> None:
    """Write the page, or print one plan."""
    if words[:1] == ["--plan"]:
        sys.stdout.write(json.dumps(planned(list(WAYS)[int(words[1])])) + "\n")
        return
    if "--page" not in words:
        known = {way: in_a_process(way) for way in WAYS}
        PLANS.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    known = json.loads(PLANS.read_text("utf-8"))
    PAGE.write_text(rendered(PAGE.read_text("utf-8"), known), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
