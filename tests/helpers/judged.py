"""Runs whose jumps are judged later: predictors of known worth, and what was told."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import torch
from support import DEVICE, stranger, tensors_of, tiny_trainer

from neaptide import PACE, HybridTrainer, Pace, Plugin, Update, hookimpl
from neaptide_plugins.delayed_verdict import SPEC

if TYPE_CHECKING:
    from pathlib import Path

    from neaptide import ParameterStore, Run, Span

SOON: dict[str, Any] = {"after": 4, "average": 2, "batches": 2, "pause": 20, "budget": 1.0}
PHASES: dict[str, Any] = {
    "warmup": {"steps": 2},
    "full": {"steps": 6},
    "predict": {"max_horizon": 5, "correction_interval": 1, "rise": 10.0},
    "correct": {"steps": 1},
}


class Along(Plugin[Any]):
    """Proposes a share of the way from the first weights, as far as the pace allows."""

    share = 0.5

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore) -> None:
        self.run, self.store = run, store
        self.first = store.snapshot().weights
        self.scales: list[float] = []

    @hookimpl
    def propose_update(self) -> Update | None:
        scale = (self.run.stash.get(PACE) or Pace()).scale
        self.scales.append(scale)
        if scale == 0.0:
            return None

        def delta(span: Span) -> torch.Tensor:
            with self.store.loan(span, "read") as weight:
                return (weight - self.first[span.name].to(weight)) * self.share * scale

        return Update(5, delta)


class Back(Along):
    """Proposes to go back."""

    share = -0.5


class Away(Along):
    """Proposes what no guard lets through."""

    share = 1e4


def predictor(cls: type[Plugin[Any]]) -> Any:
    return stranger(cls, "walker", claims={"predictor"}, numerics="changes-training")


def trained(
    plugins: Any, steps: int = 24, settings: dict[str, Any] | None = None, **config: Any
) -> Any:
    """Return a closed trainer after `steps` steps of the tiny task, and its weights."""
    given = {} if settings is None else {SPEC.name: settings}
    tables = {**given, **config.pop("tables", {})}
    trainer, batches = tiny_trainer({"phases": PHASES, **config, "plugins": tables}, plugins)
    with trainer:
        for batch in batches[:steps]:
            trainer.step(batch)
        return trainer, tensors_of(trainer.model)


def figures(trainer: Any, name: str = SPEC.name) -> dict[str, float]:
    return dict(trainer.hooks.plugins[name].collect_metrics())


def goes_on_alike(made: Any, saved_after: int, folder: Path, name: str = SPEC.name) -> None:
    """Compare a whole run with one that goes on from a checkpoint, more slowly."""
    trainer, batches = made()
    with trainer:
        for batch in batches[:saved_after]:
            trainer.step(batch)
        trainer.save(folder / "saved")
        for batch in batches[saved_after:]:
            trainer.step(batch)
        whole, told = trainer.digest(), figures(trainer, name)
    trainer, _ = made()
    with trainer:
        trainer.load(folder / "saved")
        for batch in batches[saved_after:]:
            time.sleep(0.001)
            trainer.step(batch)
        assert whole == trainer.digest()
        assert told == figures(trainer, name)


def events(directory: Path) -> list[dict[str, Any]]:
    lines = (directory / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


class Noise(Along):
    """Proposes what training takes back."""

    @hookimpl
    def propose_update(self) -> Update:
        generator = torch.Generator().manual_seed(0)
        return Update(1, lambda span: torch.randn(span.shape, generator=generator).to(DEVICE))


def line(cls: type[Plugin[Any]], lr: float = 2e-3, *, there: bool = False, **settings: Any) -> Any:
    """Return a closed trainer after 32 steps towards a line, far off unless `there`."""
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 1).to(DEVICE)
    if there:
        model.load_state_dict({"weight": torch.full((1, 6), 5.0), "bias": torch.zeros(1)})
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(32, 16, 6, generator=generator).to(DEVICE)
    trainer = HybridTrainer(
        model,
        torch.optim.SGD(model.parameters(), lr),
        loss_fn=lambda model, x: 1.0 + (model(x) - 5.0 * x.sum(-1, keepdim=True)).square().mean(),
        config={"phases": PHASES, "plugins": {SPEC.name: {**SOON, **settings}}},
        plugins=[SPEC, predictor(cls)],
    )
    with trainer:
        for batch in inputs:
            trainer.step(batch)
    return trainer
