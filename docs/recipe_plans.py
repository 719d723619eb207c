"""The plans of docs/recipes.md: models, ways to train them, and what each takes.

python docs/recipe_plans.py 7B S           prints this configuration
python docs/recipe_plans.py 7B S --plan    plans it, and prints the result as JSON
"""
# ruff: noqa: INP001 - a script beside the pages, not a package

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.config import by_name
from neaptide.hooks.enabling import configured

if TYPE_CHECKING:
    from collections.abc import Collection

ROOT = Path(__file__).resolve().parents[1]
CONTEXT, WINDOWS = 2048, 8
"""Tokens of a window, and windows of an update."""
MODELS = {
    "124M": {"layers": 12, "width": 768, "heads": 12, "hidden": 2048},
    "1B": {"layers": 18, "width": 2048, "heads": 16, "hidden": 5632},
    "3B": {"layers": 26, "width": 3200, "heads": 32, "hidden": 8640},
    "7B": {"layers": 32, "width": 4096, "heads": 32, "hidden": 11008},
    "13B": {"layers": 40, "width": 5120, "heads": 40, "hidden": 13824},
    "50B": {"layers": 64, "width": 8192, "heads": 64, "hidden": 22016},
}
VOCABULARY = 32_000


@attrs.frozen(kw_only=True)
class Way:
    """A way to train.

    Attributes:
        numerics: AdamW with weights in `float32`; weights and state that are `rounded` to 16 or 8
            bits, by any optimizer; or AdamW for a `part` of the weights.
        text: what it is, for a table.
        settings: what it adds to the configuration.
        models: for which models it is planned.
    """

    numerics: str
    text: str
    settings: dict[str, Any]
    models: Collection[str] = attrs.field(factory=MODELS.keys)


_RATES = {"adafactor": 1e-2, "lion": 3e-5}
"""Learning rates of optimizers that take another one than AdamW."""


def _half(optimizer: str, plugins: dict[str, Any], **options: Any) -> dict[str, Any]:
    chosen: dict[str, Any] = {"name": optimizer, "lr": _RATES.get(optimizer, 1e-4)}
    return {
        "model": {"options": {"dtype": "bfloat16", **options}},
        "optimizer": chosen,
        "plugins": plugins,
    }


def _whole(plugins: dict[str, Any]) -> dict[str, Any]:
    return {"optimizer": {"name": "adamw", "lr": 1e-4}, "plugins": plugins}


def _streamed(**settings: Any) -> dict[str, Any]:
    return {"layer-streaming": settings}


_PIECES: dict[str, Any] = {"micro_batches": WINDOWS, "inputs": "host"}
_TIGHT: dict[str, Any] = {**_PIECES, "max_active_layers": 1, "optimizer_slots": 1}
_AT_ONCE: dict[str, Any] = {"update": "in_backward", "clip": "lagged"}
_ACCUMULATE: dict[str, Any] = {"gradient-accumulation": {"steps": WINDOWS}}
_KEEP_INPUTS: dict[str, Any] = {"activation-checkpointing": {"interval": 1}}

WAYS = {
    "R": Way(
        numerics="float32",
        text="AdamW, all on the card: float32 weights, bf16 by `mixed-precision`, "
        "`activation-checkpointing`, `gradient-accumulation` in 8 pieces",
        models=("124M", "1B", "3B"),
        settings=_whole(_KEEP_INPUTS | _ACCUMULATE | {"mixed-precision": {"dtype": "bf16"}}),
    ),
    "S": Way(
        numerics="float32",
        text='AdamW by `layer-streaming`: bf16 weights with float32 masters (`master = "split"`), '
        '`update = "in_backward"`, `clip = "lagged"`, 8 micro-batches, inputs in RAM',
        settings=_half("adamw", _streamed(**_AT_ONCE, master="split", **_PIECES)),
    ),
    "St": Way(
        numerics="float32",
        text="as S, with one slot for weights and one for state (`max_active_layers = 1`, "
        "`optimizer_slots = 1`)",
        settings=_half("adamw", _streamed(**_AT_ONCE, master="split", **_TIGHT)),
    ),
    "R8": Way(
        numerics="rounded",
        text="`adam8bit`, all on the card: bf16 weights, `activation-checkpointing`, "
        "`gradient-accumulation` in 8 pieces; the update in plain PyTorch, which `triton-kernels` "
        "makes faster",
        models=("124M", "1B", "3B", "7B"),
        settings=_half("adam8bit", _KEEP_INPUTS | _ACCUMULATE),
    ),
    "H8": Way(
        numerics="rounded",
        text="`adam8bit` on the processor: bf16 weights by `layer-streaming` with "
        '`optimizer_on = "cpu"`, 8 micro-batches, inputs in RAM',
        settings=_half("adam8bit", _streamed(optimizer_on="cpu", **_PIECES)),
    ),
    "L": Way(
        numerics="rounded",
        text="`lion` by `layer-streaming`: bf16 weights, rounded stochastically, without masters, "
        '`update = "in_backward"`, `clip = "lagged"`, 8 micro-batches, inputs in RAM; the rounding '
        "in plain PyTorch, which `triton-kernels` makes faster",
        models=("1B", "3B", "7B", "13B"),
        settings=_half("lion", _streamed(**_AT_ONCE, **_PIECES)),
    ),
    "A": Way(
        numerics="rounded",
        text="as L, with `adafactor`, which has no momentum",
        settings=_half("adafactor", _streamed(**_AT_ONCE, **_PIECES)),
    ),
    "At": Way(
        numerics="rounded",
        text="as A, with one slot",
        models=("13B", "50B"),
        settings=_half("adafactor", _streamed(**_AT_ONCE, **_TIGHT)),
    ),
    "P": Way(
        numerics="part",
        text="as S, but only the last two blocks and the last norm are trained; the rest is frozen",
        models=("3B", "7B", "13B", "50B"),
        settings=_half("adamw", _streamed(**_AT_ONCE, master="split", **_PIECES), trained_blocks=2),
    ),
    "Pt": Way(
        numerics="part",
        text="as P, with one slot for weights and one for state",
        models=("13B", "50B"),
        settings=_half("adamw", _streamed(**_AT_ONCE, master="split", **_TIGHT), trained_blocks=2),
    ),
}


def parameters(model: str) -> int:
    """Return the number of parameters."""
    shape = MODELS[model]
    width, hidden = shape["width"], shape["hidden"]
    block = 4 * width**2 + 3 * width * hidden + 2 * width
    return shape["layers"] * block + 2 * VOCABULARY * width + width


def configuration(model: str, way: str) -> dict[str, Any]:
    """Return a complete configuration as tables."""
    settings = WAYS[way].settings
    options = {**MODELS[model], "vocabulary": VOCABULARY}
    options |= settings.get("model", {}).get("options", {})
    return {
        "version": 1,
        "model": {"name": "examples.decoders:llama", "options": options},
        "data": {"name": "builtin:python-stdlib", "options": {"context": CONTEXT}},
        "train": {"batch_size": WINDOWS, "clip_norm": 1.0},
        "optimizer": settings["optimizer"],
        "plugins": settings["plugins"],
    }


def planned(model: str, way: str) -> dict[str, Any]:
    """Return what a configuration takes: bytes by tier; and of each card, its speed and limit."""
    from neaptide_toolkit.machine import profiles  # noqa: PLC0415 - it imports torch
    from neaptide_verbs.plan.machine import PlannedMachine  # noqa: PLC0415
    from neaptide_verbs.plan.planning import plans  # noqa: PLC0415

    sys.path.insert(0, str(ROOT))
    given = configuration(model, way)
    given["train"]["device"] = "cpu"  # this machine needs no other
    names = profiles.names()
    machines = [
        PlannedMachine(name=name, device=2**60, host=2**60, rates=profiles.load(name).rates)
        for name in names
    ]
    made = plans(configured(given)[0], machines)
    cards = {
        name: {"seconds": one.seconds_per_step, "tokens": one.tokens_per_second}
        | {"bound": one.bound_by}
        for name, one in zip(names, made, strict=True)
    }
    peaks = made[0].peak_bytes
    return {"device": peaks["device"], "ram": peaks["RAM"], "cards": cards}


def in_a_process(model: str, way: str) -> dict[str, Any]:
    """Plan in a process of its own, so that its RAM is that of one plan."""
    command = [sys.executable, __file__, model, way, "--plan"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode:
        msg = f"{model} {way}: {done.stderr.strip().splitlines()[-1]}"
        raise SystemExit(msg)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print a configuration, or its plan."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--plan", action="store_true")
    given = parser.parse_args()
    if given.plan:
        sys.stdout.write(json.dumps(planned(given.model, given.way)) + "\n")
    else:
        sys.stdout.write(by_name("toml").dumps(configuration(given.model, given.way)))


if __name__ == "__main__":
    main()
