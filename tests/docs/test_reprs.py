"""The repr of every public class is one line that names the thing: no contents, no addresses."""

from __future__ import annotations

import re
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from pages import ROOT
from support import CYCLE, tiny_trainer

import neaptide
from neaptide import (
    Data,
    Finding,
    Forecast,
    HybridTrainer,
    Loss,
    RunConfig,
    StashKey,
    Task,
)
from neaptide.checkpoint import TensorItem
from neaptide.cli.output import Offers
from neaptide.config import LoadedConfig
from neaptide.hooks.registry import installed_plugins
from neaptide.io.summary import Summary
from neaptide.plugin import shipped
from neaptide.run import assembly
from neaptide_kernels.registry import KERNELS
from neaptide_kernels.registry.timings import Timing
from neaptide_plugins.delayed_verdict.gain import JumpGain
from neaptide_plugins.predictor_drift.plugin import PredictorDrift
from neaptide_toolkit.displays import Budget, Figures
from neaptide_toolkit.foreign import Converter, Source
from neaptide_toolkit.machine import profiles
from neaptide_toolkit.offload import DONE, InRam, Slab, ThreadLane
from neaptide_toolkit.pages.svg import Axis, Series
from neaptide_toolkit.predictors.settings import WindowSettings
from neaptide_toolkit.testing import HOSTILE_STORE
from neaptide_verbs.report.notebook import RunPage

WIDEST = 100
WRONG = re.compile(r" at 0x|tensor\(|\n")
API = (ROOT / "docs" / "api.rst").read_text(encoding="utf-8")


def public() -> dict[str, type[Any]]:
    """Return the classes that `neaptide` exports or the reference lists, by dotted name."""
    found = {f"neaptide.{name}": getattr(neaptide, name) for name in neaptide.__all__}
    for name in re.findall(r"(?m)^\.\. autoclass:: ([\w.]+)", API):
        module, _, last = name.rpartition(".")
        found[name] = getattr(import_module(module), last)
    for name in re.findall(r"(?m)^\.\. automodule:: ([\w.]+)", API):
        inside = vars(import_module(name)).items()
        found |= {
            f"{name}.{last}": value
            for last, value in inside
            if not last.startswith("_") and getattr(value, "__module__", "").startswith(name)
        }
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, type)
        and not issubclass(value, BaseException)
        and not issubclass(value, torch.optim.Optimizer)  # torch prints them in several lines
        and not getattr(value, "_is_protocol", False)
    }


PUBLIC = public()
WITHOUT_GPU = set() if torch.cuda.is_available() else {"neaptide_toolkit.offload.StreamLane"}
"""What cannot be made here."""

MODEL = {
    "model": {
        "name": "builtin:byte-gpt",
        "options": {"layers": 2, "width": 32, "heads": 2, "context": 16},
    },
    "data": {"name": "builtin:python-stdlib", "options": {"context": 16}},
    "train": {"steps": 12, "batch_size": 4},
    "eval": {"batches": 1},
    "phases": CYCLE,
}
DRIFT = {"predictor-drift": {"min_window": 4, "sample_every": 1}}
RUNS = (
    {
        **DRIFT,
        "activation-checkpointing": {},
        "adaptive-phases": {"lengths": [2, 4]},
        "delayed-verdict": {},
        "dynamics-linear": {},
        "ema": {},
        "optimizer-offload": {},
        "profiler": {},
        "residual-correction": {},
    },
    {**DRIFT, "int8": {}, "layer-streaming": {}},
    {
        **DRIFT,
        "low-precision-backward": {"check_every": 2, "even_if_slower": True, "min_elements": 1},
    },
)


def train(directory: Path) -> list[object]:
    """Train small models with many plugins; return what no constructor is seen to make."""
    made: list[object] = []
    optimizers = ("adamw", "adamw", "adam8bit")
    for optimizer, (number, plugins) in zip(optimizers, enumerate(RUNS), strict=True):
        config = {
            **MODEL,
            "optimizer": {"name": optimizer},
            "plugins": plugins,
            "run": {"dir": str(directory / str(number))},
        }
        with HybridTrainer.from_config(config) as trainer:
            made.append(trainer.fit(assembly.build_data(trainer.config, trainer.hooks)))
            made += [trainer, trainer.estimate_memory("predict"), trainer.store.snapshot()]
            made += trainer.hooks.plugins.values()
    trainer, batches = tiny_trainer({"phases": CYCLE}, [HOSTILE_STORE])
    with trainer:
        made += [trainer, trainer.step(batches[0])]
    return made


def by_hand() -> list[object]:
    """Return what the runs do not make."""
    weights = torch.ones(64)
    # Another test may have imported the ops before: nothing would see them made.
    ops = list(KERNELS.ops.values())
    providers = [each for name in KERNELS.ops for each in KERNELS.providers(name)]
    samples = [each for op in ops for each in op.spec.samples(torch.device("cpu"))]
    explained = KERNELS.explain("apply_delta", ([weights], [weights], torch.ones(())))
    return [
        *(*ops, *providers, *samples, *(op.spec for op in ops)),
        *(InRam(), Slab(4096), ThreadLane("fetch"), DONE),
        *(Data([1, 2, 3]), Task(torch.nn.Linear(2, 2)), Loss(weights.sum(), weights.sum())),
        *(Forecast(2.0, 0.5), JumpGain(12, 10, 0.1234567890123, 0.00123456789)),
        Finding("ok", "NVML", "a driver, " * 30),
        *(explained, *explained.providers, Timing("triton", "3.7.1", {"block": 64}, 1 / 3)),
        *(KERNELS, Source({"a": 1}), Converter(by_hand, frozenset(map(str, range(99))))),
        *(Axis(0.0, 1.0, (0.0, 1.0), ("0", "1")), Series(label="loss", colour=0)),
        *(
            LoadedConfig(RunConfig(), {"seed": "--set"}),
            Offers(lambda: ("auto",)),
            WindowSettings(),
        ),
        *(StashKey("plugin.what"), neaptide.FULL, *shipped("neaptide.plugins").values()),
        TensorItem("weight", torch.float32, (2, 2), nullcontext),
        *(neaptide.Outcome, *neaptide.Outcome),
        *(*installed_plugins().values(), PredictorDrift.ops),
        *plan_and_parts(),
        *(profiles.load("t4"), profiles.load("t4").rates),
        *(Budget(1 << 30), Figures(9), RunPage((Path("runs/a"), Path("runs/b")), "page", "", 600)),
    ]


def plan_and_parts() -> list[object]:
    """Return the plan of a model that does not fit, a tier of it, and a change that helps."""
    config = {**MODEL, "train": {"batch_size": 4096}}
    plan = neaptide.plan(None, config, 1.28)
    return [plan, *plan.tiers.values(), *plan.changes]


def noting(init: Any, made: list[object]) -> Any:
    """Return an `__init__` that notes what it has made."""

    def __init__(self: Any, *given: Any, **named: Any) -> None:  # noqa: N807 - it is one
        init(self, *given, **named)
        made.append(self)

    return __init__


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """Return every object of a public class that real runs make, and those made by hand."""
    made: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        for cls in PUBLIC.values():
            if "__init__" in vars(cls):
                patch.setattr(cls, "__init__", noting(cls.__init__, made))
        made += train(tmp_path_factory.mktemp("runs"))
    return [*made, *by_hand()]


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - WITHOUT_GPU))
def test_a_repr_is_one_line_that_names_the_thing(name: str, made: list[object]) -> None:
    reprs = {repr(one) for one in made if isinstance(one, PUBLIC[name])}
    assert reprs, "nothing of this class was made"
    assert [] == [text for text in reprs if len(text) > WIDEST or WRONG.search(text)]


def test_what_fit_returns_is_one_line_and_prints_a_table(made: list[object]) -> None:
    (summary, *_) = [one for one in made if isinstance(one, Summary)]
    assert re.fullmatch(r"Summary\(steps=12, val_loss=\S+, final_loss=\S+, .*\)", repr(summary))
    assert "updates               12" in str(summary).split("\n")
