"""Metrics in runs: the numbers, where they are written, and that nothing is computed twice."""

from __future__ import annotations

import json
import math
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from huggingface_families import batches as labelled
from huggingface_families import saved
from support import DEVICE, same_tensors, tensors_of, tiny_trainer

from neaptide import ConfigError, DataError, HybridTrainer
from neaptide.api.steps import MEASURED
from neaptide.cli import main
from neaptide_plugins.metrics import SPEC
from neaptide_toolkit.testing import check_plugin
from neaptide_toolkit.testing.tiny import tiny_loss, tiny_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def functions() -> Iterator[ModuleType]:
    module = ModuleType("metric_functions")
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def settings(*compute: str, **given: Any) -> dict[str, Any]:
    return {"plugins": {"metrics": {"compute": [*compute], **given}}}


def measured(trainer: HybridTrainer) -> dict[str, float]:
    return dict(trainer.run.stash.get(MEASURED) or {})


@pytest.mark.parametrize("given", [{}, {"compute": ["accuracy", "perplexity"]}])
def test_the_contract_is_kept(given: dict[str, Any]) -> None:
    check_plugin(SPEC, given)


def test_accuracy_and_perplexity_of_a_classifier() -> None:
    trainer, batches = tiny_trainer(settings("accuracy", "perplexity"))
    with trainer:
        loss = trainer.evaluate(batches[:3])
        found = measured(trainer)
        trainer.model.eval()
        with torch.no_grad():
            right = [trainer.model(one["x"]).argmax(-1) == one["y"] for one in batches[:3]]
    counted = sum(int((one["y"] != -100).sum()) for one in batches[:3])
    assert {"accuracy", "perplexity"} == found.keys()
    assert sum(int(one.sum()) for one in right) / counted == found["accuracy"]
    assert math.exp(loss) == found["perplexity"]


@pytest.mark.parametrize(("family", "shift"), [("llama", 1), ("bert", 0), ("t5", 0), ("vit", 0)])
def test_models_of_transformers_have_the_shift_of_their_loss(
    family: str, shift: int, tmp_path: Path
) -> None:
    model = saved(family, tmp_path).to(DEVICE).eval()
    batches = [{k: v.to(DEVICE) for k, v in one.items()} for one in labelled(family, 2)]
    if family != "vit":
        batches[0]["labels"][:, :5] = -100
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with HybridTrainer(model, optimizer, config=settings("accuracy")) as trainer:
        trainer.evaluate(batches)
        found = measured(trainer)["accuracy"]
    right = count = 0
    with torch.no_grad():
        for one in batches:
            logits, labels = model(**one).logits, one["labels"]
            if shift:
                logits, labels = logits[:, :-1], labels[:, 1:]
            right += int((logits.argmax(-1) == labels).sum())
            count += int((labels != -100).sum())
    assert right / count == found


def test_the_model_is_called_once_for_a_batch(functions: ModuleType) -> None:
    calls = []
    functions.__dict__["zero"] = lambda _outputs, _batch: 0.0
    trainer, batches = tiny_trainer(settings("accuracy", "metric_functions:zero"))
    with trainer:
        trainer.model.register_forward_pre_hook(lambda *_: calls.append(trainer.model.training))
        trainer.step(batches[0])
        trainer.evaluate(batches[:4])
        trainer.evaluate(batches[:4], plain=True)
    assert [True] + 8 * [False] == calls


def test_training_and_the_loss_do_not_change() -> None:
    def run(config: dict[str, Any] | None) -> tuple[list[float], dict[str, torch.Tensor]]:
        trainer, batches = tiny_trainer(config)
        losses = []
        with trainer:
            for batch in batches[:8]:
                losses.append(trainer.step(batch).loss)
                losses.append(trainer.evaluate(batches[-2:]))
        return losses, tensors_of(trainer.model)

    (losses, weights), (others, same) = run(None), run(settings("accuracy", "perplexity"))
    assert losses == others
    assert same_tensors(weights, same)


@pytest.mark.parametrize("beside", ["ema", "layer-streaming", "mixed-precision"])
def test_metrics_are_of_the_weights_that_are_evaluated(beside: str) -> None:
    config = settings("accuracy", "perplexity")
    config["plugins"][beside] = {"ema": {"decay": 0.5}}.get(beside, {})
    trainer, batches = tiny_trainer(config)
    seen = []
    with trainer:
        for batch in batches[:3]:
            trainer.step(batch)
        trainer.model.register_forward_hook(lambda _m, _i, out: seen.append(out.argmax(-1)))
        loss = trainer.evaluate(batches[-2:])
        found = measured(trainer)
    pairs = [(one == batch["y"]) for one, batch in zip(seen, batches[-2:], strict=True)]
    assert sum(int(one.sum()) for one in pairs) / 22 == found["accuracy"]
    assert math.exp(loss) == found["perplexity"]


RETURNS: dict[str, tuple[Callable[[torch.Tensor, Any], Any], float]] = {
    "number": (lambda _out, batch: float(len(batch["x"])), 12.0),
    "tensor": (lambda out, _batch: torch.ones((), device=out.device), 1.0),
    "pair": (lambda _out, batch: ((batch["y"] == -100).sum(), 3), 1 / 3),
}


@pytest.mark.parametrize("kind", RETURNS)
def test_a_function_gets_outputs_and_batch(kind: str, functions: ModuleType) -> None:
    functions.__dict__["own"], expected = RETURNS[kind]
    trainer, batches = tiny_trainer(settings("metric_functions:own"))
    with trainer:
        trainer.evaluate(batches[:3])
        assert {"own": pytest.approx(expected)} == measured(trainer)


def test_an_error_of_a_function_names_it(functions: ModuleType) -> None:
    def own(_outputs: Any, _batch: Any) -> float:
        msg = "mine"
        raise ZeroDivisionError(msg)

    functions.__dict__["own"] = own
    trainer, batches = tiny_trainer(settings("metric_functions:own"))
    with trainer, pytest.raises(ZeroDivisionError, match="mine") as caught:
        trainer.evaluate(batches[:3])
    assert any("function 'own'" in note for note in caught.value.__notes__)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_records_have_each_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = settings("accuracy", "perplexity")
    config |= {
        "run": {"dir": str(tmp_path / "run"), "log_every": 2},
        "train": {"steps": 10},
        "eval": {"every": 4},
    }
    trainer, batches = tiny_trainer(config)
    with trainer:
        trainer.fit(batches[:10], validation=batches[10:12])
        report = trainer.report("metrics")
    metrics = lines_of(tmp_path / "run/metrics.jsonl")
    evaluated = {one["step"]: one for one in metrics if "val_loss" in one}
    assert [4, 8, 10] == [*evaluated]
    for one in evaluated.values():
        assert math.exp(one["val_loss"]) == one["perplexity"]
        assert 0.0 <= one["accuracy"] <= 1.0
    assert all("accuracy" not in one for one in metrics if "val_loss" not in one)
    assert report is not None
    assert report.startswith("metrics at update 10")
    assert 0 == main(["report", str(tmp_path / "run"), "--json"])
    assert {"accuracy", "perplexity"} <= json.loads(capsys.readouterr().out)["metrics"].keys()


@pytest.mark.parametrize(
    ("compute", "wrong"),
    [
        (["f1"], "'compute' must have perplexity, accuracy or 'package.module:function'"),
        ([], "must name a metric"),
        (["accuracy", "metric_functions:accuracy"], "has 'accuracy' twice"),
        (["metric_functions:none"], "has no 'none'"),
        (["no_such_module:f"], "cannot import 'no_such_module'"),
    ],
)
def test_wrong_names_are_refused_in_one_line(
    compute: list[str], wrong: str, functions: ModuleType
) -> None:
    del functions
    with pytest.raises(ConfigError) as caught:
        tiny_trainer(settings(*compute))
    (line,) = str(caught.value).splitlines()
    assert wrong in line
    assert "plugins.metrics.compute" in line


def test_a_loss_that_calls_the_model_twice_is_refused() -> None:
    task = tiny_task(device=DEVICE)
    with HybridTrainer(
        task.model,
        task.optimizer,
        loss_fn=lambda model, batch: (model(batch["x"]), tiny_loss(model, batch))[1],
        config=settings("accuracy"),
    ) as trainer:
        with pytest.raises(DataError, match="loss_fn made 2") as caught:
            trainer.evaluate(task.batches[:2])
        assert 1 == len(str(caught.value).splitlines())
