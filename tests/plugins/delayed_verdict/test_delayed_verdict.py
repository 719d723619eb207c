"""Verdicts in runs: what is judged is what happened, and judging leaves no trace."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import same_tensors, stranger, tensors_of, tiny_trainer

from neaptide import PACE, ConfigError, HybridTrainer, Plugin, Update, hookimpl
from neaptide.testing.tiny import STEADY_PREDICTOR
from neaptide_plugins.delayed_verdict import SPEC

if TYPE_CHECKING:
    from pathlib import Path

    from neaptide import ParameterStore, Run, Span

SOON: dict[str, Any] = {"after": 4, "average": 2, "batches": 2, "pause": 20}
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
        scale = self.run.stash.get(PACE).scale
        self.scales.append(scale)
        if scale == 0.0:
            return None

        def delta(span: Span) -> torch.Tensor:
            with self.store.loan(span, "read") as weight:
                return (weight - self.first[span.name]) * self.share * scale

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


def figures(trainer: Any) -> dict[str, float]:
    return dict(trainer.hooks.plugins[SPEC.name].collect_metrics())


def events(directory: Path) -> list[dict[str, Any]]:
    lines = (directory / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


class Noise(Along):
    """Proposes what training takes back."""

    @hookimpl
    def propose_update(self) -> Update:
        generator = torch.Generator().manual_seed(0)
        return Update(1, lambda span: torch.randn(span.shape, generator=generator))


def line(cls: type[Plugin[Any]], lr: float = 2e-3, *, there: bool = False, **settings: Any) -> Any:
    """Return a closed trainer after 32 steps towards a line, far off unless `there`."""
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 1)
    if there:
        model.load_state_dict({"weight": torch.full((1, 6), 5.0), "bias": torch.zeros(1)})
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(32, 16, 6, generator=generator)
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


@pytest.mark.parametrize("contrast", ["mirrored", "undone"])
def test_a_jump_forward_is_worthwhile_and_one_back_is_harmful(contrast: str) -> None:
    forward = figures(line(Along, contrast=contrast))
    assert forward["worthwhile"] == 3.0
    assert 1.25**3 == forward["scale"] == forward["window"]
    back = figures(line(Back, contrast=contrast))
    assert back["harmful"] == 3.0
    assert 0.0 == back["scale"]
    assert 0.25 == back["window"]


def test_undoing_flatters_what_training_has_undone_and_mirroring_does_not() -> None:
    undone = figures(line(Noise, 0.2, there=True, contrast="undone"))
    assert undone["worthwhile"] > 0.0
    mirrored = figures(line(Noise, 0.2, there=True, contrast="mirrored"))
    assert 0.0 == mirrored["worthwhile"]
    assert mirrored["harmful"] > 0.0


def test_jumps_accepted_while_one_is_judged_are_not(tmp_path: Path) -> None:
    often = {**PHASES, "full": {"steps": 2}}
    trained([SPEC, STEADY_PREDICTOR], 30, SOON, phases=often, run={"dir": str(tmp_path)})
    told = [each["jump"] for each in events(tmp_path) if each["event"].startswith("verdict.")]
    accepted = [each["step"] for each in events(tmp_path) if each["event"] == "jump.accepted"]
    assert len(told) >= 3
    assert len(accepted) >= 2 * len(told)
    assert min(later - sooner for sooner, later in pairwise(told)) > 4


def test_a_predictor_that_harms_is_slowed_down_then_stopped() -> None:
    trainer = line(Back, patience=2)
    scales = trainer.hooks.plugins["walker"].scales
    assert [1.0, 0.5, 0.0] == list(dict.fromkeys(scales))


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"ema": {"decay": 0.9}},
        {"gradient-accumulation": {"steps": 3}},
        {"mixed-precision": {"full": "bf16", "correct": "bf16"}},
        {"layer-streaming": {}},
        {"int8": {}},
    ],
    ids=str,
)
def test_judging_changes_no_bit(tables: dict[str, Any]) -> None:
    names = list(tables)
    _, expected = trained([STEADY_PREDICTOR, *names], tables=tables)
    trainer, weights = trained([SPEC, STEADY_PREDICTOR, *names], settings=SOON, tables=tables)
    found = figures(trainer)
    assert 2.0 <= found["worthwhile"] + found["harmful"] + found["unclear"]
    assert 0.0 == found["unfinished"]
    assert same_tensors(expected, weights)


def test_with_every_jump_refused_nothing_is_judged_and_no_bit_changes() -> None:
    strict = {"phases": {**PHASES, "predict": {**PHASES["predict"], "halvings": 0, "rise": 0.0}}}
    _, expected = trained([])
    trainer, weights = trained([SPEC, predictor(Away)], settings=SOON, **strict)
    assert trainer.hooks.plugins["walker"].scales
    found = figures(trainer)
    assert 0.0 == found["worthwhile"] + found["harmful"] + found["unclear"]
    assert trainer.state.jumps == 0
    assert same_tensors(expected, weights)


def test_the_verdict_is_on_the_mean_of_the_last_weights_and_the_jump() -> None:
    trainer, batches = tiny_trainer(
        {"phases": PHASES, "plugins": {SPEC.name: {**SOON, "contrast": "undone"}}},
        [SPEC, STEADY_PREDICTOR],
    )
    trained_names = {name for name, each in trainer.model.named_parameters() if each.requires_grad}

    def weights() -> dict[str, torch.Tensor]:
        return {
            name: each for name, each in tensors_of(trainer.model).items() if name in trained_names
        }

    samples: list[dict[str, torch.Tensor]] = []
    delta: dict[str, torch.Tensor] = {}
    gains: list[float] = []
    with trainer:
        for batch in batches:
            before = weights()
            if len(samples) >= 4:
                mean = {name: (samples[2][name] + samples[3][name]) / 2 for name in before}
                state = tensors_of(trainer.model)
                losses = []
                for jumps in (0.0, -1.0):
                    moved = {name: mean[name] + jumps * delta[name] for name in mean}
                    trainer.model.load_state_dict({**state, **moved})
                    losses.append(trainer.evaluate([batch]))
                trainer.model.load_state_dict(state)
                gains.append(losses[1] - losses[0])
            result = trainer.step(batch)
            if result.was_predicted and not delta:
                delta = {name: each * -0.001 for name, each in before.items()}
            if delta:
                samples.append(weights())
            if len(gains) == 2:
                break
        found = figures(trainer)
    # The jump is kept in bfloat16, and is small beside the rounding of a loss.
    assert pytest.approx(sum(gains) / 2, rel=0.05, abs=1e-6) == found["gain"]
    assert found["gain"] != 0.0


@pytest.mark.parametrize("saved_after", [9, 12, 14])
def test_a_run_resumed_with_a_verdict_pending_is_the_same(tmp_path: Path, saved_after: int) -> None:
    def made() -> Any:
        return tiny_trainer(
            {"phases": PHASES, "plugins": {SPEC.name: SOON}}, [SPEC, predictor(Back)]
        )

    trainer, batches = made()
    with trainer:
        for batch in batches[:saved_after]:
            trainer.step(batch)
        trainer.save(tmp_path / "saved")
        for batch in batches[saved_after:]:
            trainer.step(batch)
        whole, told = trainer.digest(), figures(trainer)
    trainer, _ = made()
    with trainer:
        trainer.load(tmp_path / "saved")
        for batch in batches[saved_after:]:
            trainer.step(batch)
        assert whole == trainer.digest()
        assert told == figures(trainer)


def test_a_probe_that_is_not_finite_gives_no_verdict(tmp_path: Path) -> None:
    trainer, batches = tiny_trainer(
        {"phases": PHASES, "plugins": {SPEC.name: SOON}, "run": {"dir": str(tmp_path)}},
        [SPEC, STEADY_PREDICTOR],
    )
    broken = {**batches[0], "x": torch.full_like(batches[0]["x"], math.nan)}
    with trainer:
        jumped = None
        for number, batch in enumerate(batches):
            result = trainer.step(batch)
            jumped = number if jumped is None and result.was_predicted else jumped
            if jumped is not None and number == jumped + 3:
                break
        trainer.step(broken)
        found = figures(trainer)
    assert 1.0 == found["unfinished"]
    assert 1.0 == found["scale"]
    assert 0.0 == found["worthwhile"] + found["harmful"] + found["unclear"]
    (event,) = (each for each in events(tmp_path) if each["event"] == "verdict.none")
    assert jumped + 1 == event["jump"]


def test_each_verdict_is_told(tmp_path: Path) -> None:
    trainer, _ = trained([SPEC, predictor(Along)], 32, SOON, run={"dir": str(tmp_path)})
    told = [each for each in events(tmp_path) if each["event"].startswith("verdict.")]
    jumps = [each["step"] for each in events(tmp_path) if each["event"] == "jump.accepted"]
    assert sum(figures(trainer)[each] for each in ("worthwhile", "harmful", "unclear")) == len(told)
    assert len(told) >= 3
    for event in told:
        assert event["jump"] in jumps
        assert event["step"] == event["jump"] + 4 + 1
        assert "high" == event["regime"]
        assert event["stderr"] >= 0.0
    assert [True, True, False] == [each["gain_by_forecast"] is None for each in told[:3]]


def test_what_it_holds_is_in_the_ledger() -> None:
    trainer, batches = tiny_trainer({"plugins": {SPEC.name: SOON}}, [SPEC, STEADY_PREDICTOR])
    with trainer:
        for batch in batches[:2]:
            trainer.step(batch, phase="full")
        trainable = sum(each.numel() for each in trainer.model.parameters() if each.requires_grad)
        ledger = trainer.estimate_memory("full")
        assert 6 * trainable == ledger.total(owner=SPEC.name, moment="update")
        assert 10 * trainable == ledger.total(owner=SPEC.name, moment="predict")


def test_without_a_predictor_there_is_nothing_to_judge() -> None:
    with pytest.raises(ConfigError, match=r"'delayed-verdict' requires 'predictor'"):
        tiny_trainer({"plugins": {SPEC.name: {}}})


def test_an_average_over_more_than_there_is_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'average' must be at most after = 4"):
        trained([SPEC, STEADY_PREDICTOR], settings={"after": 4, "average": 5})
