"""The gain from prediction: every idea on every task, measured like `neaptide compare`.

    python bench/predict.py                                  # all ideas and tasks: takes hours
    python bench/predict.py --ideas drift --tasks photo      # one idea on one task
    python bench/predict.py --ideas drift --tasks photo --seeds 1,2 --whole   # a quick look

An idea is a configuration that is added to a task. It is compared with an opponent, which is
another configuration or the idea without prediction. The configurations are the files of
bench/predict/. Trials (training runs) are stored below --out and trained only once. After an
interruption the same command continues. The file of --json keeps earlier results, except results of
the same command.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from predictions.report import markdown, tasks

from neaptide.config import load
from neaptide.hooks.registry import installed_plugins
from neaptide.io.folder import replace_file
from neaptide.io.jsonable import jsonable
from neaptide.run.signals import stop_on_signals
from neaptide_toolkit.machine import facts as machine
from neaptide_verbs.compare.findings import findings
from neaptide_verbs.compare.pool import Pool
from neaptide_verbs.compare.protocol import compare
from neaptide_verbs.compare.runs import ComparisonSettings
from neaptide_verbs.compare.shown.text import headline, summary
from neaptide_verbs.compare.sides import sides_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide.config import RunConfig
    from neaptide_verbs.compare.trials import Result, TrainingTrial

HERE = Path(__file__).parent
TRIED = HERE / "predictions" / "tried"
"""Plugins of ideas that are not worth shipping, as a distribution."""
sys.path.insert(0, str(TRIED))
TASKS = ("byte-gpt", "noisy-digits", "photo")
LATER_TASKS = ("epochs", "finetune", "gpt-5m")
"""Tasks that are measured only if `--tasks` names them: they need weights, or hours."""
SEEDS = (10, 11, 12, 13, 14)


@attrs.frozen
class Idea:
    """The files that an idea adds to a task, and the files that its opponent adds.

    The opponent's files are None if the opponent is the idea without prediction. In the name of a
    file, `{task}` is the task's name.
    """

    candidate: tuple[str, ...]
    against: tuple[str, ...] | None = None


JUMPS = (
    "drift",
    "far",
    "search",
    "verdict",
    "dynamics",
    "extrapolate",
    "momentum",
    "dmd",
)
OPTIMIZERS = (
    "muon",
    "ademamix",
    "adam-mini",
    "lion",
    "apollo",
    "apollo-mini",
    "adafactor",
    "adam8bit",
    "lion8bit",
)
"""Optimizers without jumps, each compared with AdamW."""
BASE = ("adamw", "pace")
"""The files of the baseline on AdamW. All jumps on AdamW share this opponent and its trials."""
IDEAS = {
    **{name: Idea(("adamw", "pace", name)) for name in JUMPS},
    **{f"{name}-muon": Idea(("muon", "pace", name)) for name in JUMPS},
    **{name: Idea((name, "pace"), against=BASE) for name in OPTIMIZERS},
    **{name: Idea(("adamw", "pace", name)) for name in ("late", "shrunk", "spectrum")},
    "learned": Idea(("adamw", "pace", "learned", "unseen-{task}")),
    "between-epochs": Idea(("adamw", "between-epochs")),
    "averaged": Idea(("adamw", "pace", "constant", "drift"), against=BASE),
    "constant": Idea(("adamw", "pace", "constant"), against=BASE),
    **{
        f"wsd-{name}": Idea(("adamw", "pace", "wsd", name), against=BASE)
        for name in ("drift", "onset", "onset-short")
    },
    "stack": Idea(("muon", "pace", "drift"), against=BASE),
    "stack-search": Idea(("muon", "pace", "search"), against=BASE),
}


def composed(task: str, overlays: Sequence[str], sets: Sequence[str]) -> RunConfig:
    """Return the configuration of a task, changed by the files and then by the settings."""
    names = (task, *(name.format(task=task) for name in overlays))
    files = [HERE / "predict" / f"{name}.toml" for name in names]
    return load(files, specs=installed_plugins(), sets=sets).config


def measured(task: str, idea: Idea, settings: ComparisonSettings, given: Any) -> dict[str, Any]:
    """Return the findings of one idea on one task."""
    against = None if idea.against is None else composed(task, idea.against, given.set)
    sides = sides_of(composed(task, idea.candidate, given.set), against)
    root = given.out / task
    root.mkdir(parents=True, exist_ok=True)
    with (
        stop_on_signals() as stop,
        Pool(root, given.jobs, given.threads, _report, stop) as pool,
    ):
        return findings(compare(sides, settings, pool.train))


def entry(task: str, name: str, found: dict[str, Any], command: str) -> dict[str, Any]:
    """Return an idea's entry for the JSON file. The entry does not list the trials."""
    idea = IDEAS[name]
    files = {"candidate": [task, *idea.candidate]}
    if idea.against is not None:
        files["baseline"] = [task, *idea.against]
    return {
        "name": task,
        "idea": name,
        "seeds": found["seeds"],
        "tuning_seeds": found["tuning_seeds"],
        "baseline_is_tuned": found["baseline_is_tuned"],
        "command": command,
        "files": files,
        "worth": {side: _worth(headline(values)) for side, values in found["sides"].items()},
        "levels": found["levels"],
        "sides": {
            side: {key: values[key] for key in ("swept", "chosen", "budgets")}
            for side, values in found["sides"].items()
        },
    }


def _worth(best: Any) -> dict[str, Any]:
    return {
        "fraction": best["at"]["fraction"],
        "evaluation": best["kind"],
        "multiplier": best["multiplier"],
        "time_multiplier": best["time_multiplier"],
    }


def _report(trial: TrainingTrial, result: Result, kept: bool) -> None:  # noqa: FBT001 - a callback
    if not kept:
        averaged = "" if result.averaged is None else f", averaged {result.averaged:.4f}"
        when = time.strftime("%H:%M:%S")
        text = f"{when} {trial.label}: {result.loss:.4f}{averaged} ({result.seconds:.1f} s)\n"
        sys.stderr.write(text)


def _command(idea: str, task: str, given: Any) -> str:
    """Return the command that repeats this measurement."""
    words = ["python", "bench/predict.py", "--ideas", idea, "--tasks", task, "--seeds", given.seeds]
    words += ["--as-is"] * given.as_is + ["--whole"] * given.whole
    words += [word for setting in given.set for word in ("--set", setting)]
    return shlex.join(words)


def _place(made: dict[str, Any]) -> tuple[int, int, list[int]]:
    ideas = list(IDEAS)
    known = ideas.index(made["idea"]) if made["idea"] in ideas else len(ideas)
    every = [*TASKS, *LATER_TASKS]
    order = every.index(made["name"]) if made["name"] in every else len(every)
    return known, order, made["seeds"]


def _kept(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.exists():
        return []
    entries: list[dict[str, Any]] = json.loads(path.read_text())["comparisons"]
    return entries


def main() -> None:
    """Measure, print, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ideas", default=",".join(IDEAS))
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--as-is", action="store_true", help="sweep nothing")
    parser.add_argument(
        "--whole", action="store_true", help="train candidates only with their whole budget"
    )
    parser.add_argument("--set", action="append", default=[], help="a setting for all sides")
    parser.add_argument("--jobs", type=int, default=max(1, int(machine.processor().usable or 1)))
    parser.add_argument("--threads", type=int, default=1, help="threads of each trial")
    parser.add_argument("--out", type=Path, default=Path("runs/predict"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", action="store_true", help="print the table of --json, and end")
    given = parser.parse_args()
    if given.table:
        print(markdown(_kept(given.json)))
        return
    for flag, named, known in (
        ("ideas", given.ideas, IDEAS),
        ("tasks", given.tasks, (*TASKS, *LATER_TASKS)),
    ):
        unknown = sorted(set(named.split(",")) - set(known))
        if unknown:
            parser.error(f"--{flag}: {unknown[0]!r} is not one of {', '.join(known)}")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(HERE), str(TRIED), os.environ.get("PYTHONPATH", "")))
    )
    seeds = tuple(map(int, given.seeds.split(",")))
    settings = ComparisonSettings(seeds=seeds, sweeps=not given.as_is)
    if given.whole:
        settings = attrs.evolve(settings, candidate_budgets=(1.0,))
    for name in given.ideas.split(","):
        for task in given.tasks.split(","):
            found = measured(task, IDEAS[name], settings, given)
            print(f"\n== {name} on {task}\n\n{summary(found)}", flush=True)
            made = entry(task, name, found, _command(name, task, given))
            if given.json is not None:
                others = [old for old in _kept(given.json) if old["command"] != made["command"]]
                entries = sorted([*others, made], key=_place)
                document = {
                    "machine": machine.facts(),
                    "tasks": tasks(entries),
                    "comparisons": entries,
                }
                replace_file(given.json, json.dumps(jsonable(document), indent=1).encode())


if __name__ == "__main__":
    main()
