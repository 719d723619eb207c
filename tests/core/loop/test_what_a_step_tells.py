"""What a step tells: its tokens and its rate, and why a Predict step made no jump."""

from __future__ import annotations

import json
from collections import UserDict
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import torch
from support import CYCLE, plugin_with, stranger, tiny_trainer
from torch import nn

from neaptide import DECLINED, Forecast, HybridTrainer, hookimpl
from neaptide.tensors import token_count

if TYPE_CHECKING:
    from pathlib import Path

IDS = torch.zeros(2, 5, dtype=torch.long)


@pytest.mark.parametrize(
    ("batch", "tokens"),
    [
        (IDS, 10),
        (IDS.int(), 10),
        ((IDS, torch.zeros(2)), 10),
        ({"tokens": IDS}, 10),
        ({"x": torch.zeros(2, 3), "input_ids": IDS}, 10),
        (UserDict(input_ids=IDS, labels=torch.zeros(9, 9, dtype=torch.long)), 10),
        ({"x": torch.zeros(2, 3), "labels": IDS}, None),
        (IDS.float(), None),
        (IDS.to(torch.uint8), None),
        (IDS[0], None),
        (IDS[None], None),
        ({"input_ids": [[1, 2]]}, None),
        ([], None),
        ("text", None),
        (None, None),
    ],
)
def test_tokens_are_whole_numbers_of_batch_and_sequence(batch: Any, tokens: int | None) -> None:
    assert tokens == token_count(batch)


def test_a_result_has_tokens_and_the_rate_of_its_update() -> None:
    model = nn.Embedding(7, 3)
    trainer = HybridTrainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        loss_fn=lambda model, batch: model(batch["input_ids"]).square().mean(),
        config={"plugins": {"lr-schedule": {"warmup": 1}}},
    )
    with trainer:
        results = [trainer.step({"input_ids": ids}) for ids in (IDS, IDS[0])]
    assert [(10, 0.25), (None, 0.5)] == [(one.tokens, one.lr) for one in results]


@pytest.mark.parametrize(("rate", "told"), [(torch.tensor(0.25), 0.25), (None, None)])
def test_a_rate_that_is_no_number_is_read_only_on_the_host(rate: Any, told: float | None) -> None:
    trainer, batches = tiny_trainer()
    with trainer:
        step = trainer.optimizer.step
        trainer.optimizer.step = lambda: step() and None  # type: ignore[method-assign]
        result = trainer.step(batches[0])
        assert 0.01 == result.lr
        trainer.optimizer.param_groups[0]["lr"] = rate
        from neaptide.loop.update import rate_of

        assert told == rate_of(trainer.optimizer)


def reasons(directory: Path, plugins: list[Any]) -> list[str]:
    """Return why a run's Predict steps made no jump."""
    config = {"train": {"steps": 12}, "phases": CYCLE, "run": {"dir": str(directory / "run")}}
    trainer, batches = tiny_trainer(config, plugins=plugins)
    with trainer:
        trainer.fit(batches)
    lines = (directory / "run/events.jsonl").read_text(encoding="utf-8").splitlines()
    events = map(json.loads, lines)
    return [event["reason"] for event in events if event["event"] == "jump.declined"]


@hookimpl
def propose_update() -> None:
    """Propose nothing."""


def shy(said: str | None) -> Any:
    """Return a plugin that declines every jump and says why, or does not."""

    class Shy:
        @hookimpl
        def on_run_start(self, run: Any) -> None:
            self.run = run

        @hookimpl
        def around_predict(self) -> Any:
            def declining(following: Any, **arguments: Any) -> None:
                del following, arguments
                if said is not None:
                    self.run.stash.set(DECLINED, said)

            return declining

    return plugin_with(**{k: v for k, v in vars(Shy).items() if not k.startswith("__")})


def predictor(cls: Any, **manifest: Any) -> Any:
    return stranger(cls, claims={"predictor"}, numerics="changes-training", **manifest)


def test_the_reason_of_a_plugin_is_in_the_events(tmp_path: Path) -> None:
    assert {"shy: not today"} == set(reasons(tmp_path, [predictor(shy("shy: not today"))]))


def test_a_predictor_that_is_silent_proposed_nothing(tmp_path: Path) -> None:
    silent = predictor(plugin_with(propose_update=staticmethod(propose_update)))
    assert {"the predictor proposed no update"} == set(reasons(tmp_path, [silent]))


@pytest.mark.parametrize(
    ("forecast", "reason"),
    [
        (Forecast(1.0, 0.25), "the forecast's confidence 0.25 is below 0.85"),
        (Forecast(float("nan"), 1.0), "the forecast's loss is not finite"),
    ],
)
def test_a_forecast_declines_with_its_confidence(
    tmp_path: Path, forecast: Forecast, reason: str
) -> None:
    @hookimpl
    def told(self: Any) -> Forecast:
        return forecast

    silent = predictor(plugin_with(propose_update=staticmethod(propose_update)))
    seer = stranger(plugin_with(forecast=told), "seer", claims={"dynamics"})
    assert {reason} == set(reasons(tmp_path, [silent, seer]))


def test_a_batch_of_a_class_with_a_field_of_keys_is_counted() -> None:
    @attrs.frozen
    class Batch:
        queries: torch.Tensor
        keys: torch.Tensor

    assert 10 == token_count(Batch(IDS, IDS))


@pytest.mark.parametrize(("ignored", "told"), [(0, 0), (3, 1)])
def test_an_evaluation_tells_that_the_weights_of_its_batches_are_unknown(
    ignored: int, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = torch.nn.Linear(2, 3)

    def loss_fn(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        made: torch.Tensor = torch.nn.functional.cross_entropy(model(batch["x"]), batch["labels"])
        return made

    batches = [{"x": torch.randn(4, 2), "labels": torch.ones(4, dtype=torch.int64)} for _ in "ab"]
    batches[1]["labels"][:ignored] = -100
    with HybridTrainer(model, torch.optim.SGD(model.parameters(), 0.1), loss_fn=loss_fn) as trainer:
        trainer.evaluate(batches)
    assert told == caplog.text.count("evaluation.weighed_by_samples")
    assert told == caplog.text.count("neaptide.Loss(sum of the losses, number of targets)")
