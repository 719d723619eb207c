"""Runs with a lowered backward: where it acts, beside what, and when it gives up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import CYCLE, tensors_of, tiny_trainer
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import GPT2Config, GPT2LMHeadModel

from neaptide import ConfigError, HybridTrainer
from neaptide_plugins.low_precision_backward.config import LowPrecisionBackwardConfig
from neaptide_plugins.low_precision_backward.refusals import check_hardware
from neaptide_toolkit.testing import HOSTILE_STORE, check_plugin
from neaptide_toolkit.testing.parting import same_bits
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from pathlib import Path

NAME = "low-precision-backward"
TINY = {
    "min_elements": 1,
    "min_rows": 1,
    "exclude": [],
    "even_if_slower": True,
    "phases": ["warmup", "full", "correct"],
    "check_every": 5,
    "limit": 0.5,
}
"""Settings with which it acts on the tiny network."""


def run(
    steps: int, beside: Any = (), config: dict[str, Any] | None = None, **settings: Any
) -> tuple[dict[str, torch.Tensor], dict[str, float], str]:
    """Return weights, metrics and digest after `steps`."""
    tables = {NAME: {**TINY, **settings}, **(config or {}).get("plugins", {})}
    trainer, batches = tiny_trainer({**(config or {}), "plugins": tables}, [*tables, *beside])
    with trainer:
        for batch in batches[:steps]:
            result = trainer.step(batch)
        metrics = trainer.hooks.plugins[NAME].collect_metrics(result.phase)
        return tensors_of(trainer.model), metrics, trainer.digest()


def settings_of(**more: Any) -> dict[str, Any]:
    return {"plugins": {NAME: {**TINY, **more}}}


@pytest.mark.slow
def test_fp8_keeps_the_contract_too() -> None:
    laws = ["resume-is-exact", "works-on-loans-alone", "estimate-is-measured"]
    check_plugin(NAME, {**TINY, "dtype": "fp8"}, laws=laws)


@pytest.mark.parametrize(
    "beside",
    [
        {"activation-checkpointing": {"interval": 2}},
        {"layer-streaming": {}},
        {"layer-streaming": {"mode": "graph"}},
        {"layer-streaming": {"update": "in_backward", "clip": "per_tensor"}},
    ],
    ids=lambda beside: "-".join([*beside, *next(iter(beside.values()), {})]),
)
def test_what_is_computed_again_in_the_backward_is_lowered_there(beside: dict[str, Any]) -> None:
    # Seeds go by the order of the backward, which is the same.
    never = {"check_every": 100}
    plain, counted, _ = run(6, **never)
    weights, recounted, _ = run(6, config={"plugins": beside}, **never)
    assert counted["products_low"] == 6 * 12
    assert recounted["products_low"] >= counted["products_low"]
    assert all(same_bits(plain[name], weights[name]) for name in plain)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_it_works_under_mixed_precision(precision: str) -> None:
    mixed = {"plugins": {"mixed-precision": {"warmup": precision, "full": precision}}}
    _, metrics, _ = run(13, config=mixed)
    assert (1.0, 0.0) == (metrics["low_precision_active"], metrics["products_exact"])
    assert 0 < metrics["extra_variance"] < 0.01


def test_it_acts_in_its_phases_alone() -> None:
    config = {"phases": CYCLE, **settings_of(phases=["correct"])}
    trainer, batches = tiny_trainer(config, [NAME, STEADY_PREDICTOR])
    plugin = trainer.hooks.plugins[NAME]
    seen: dict[str, set[float]] = {}
    before = 0.0
    with trainer:
        for batch in batches[:16]:
            phase = trainer.step(batch).phase
            now = plugin.collect_metrics(phase)["products_low"]
            seen.setdefault(phase.name, set()).add(now - before)
            before = now
    assert {"warmup": {0.0}, "full": {0.0}, "correct": {12.0}} == seen


def test_measuring_changes_nothing() -> None:
    one, _, _ = run(13, check_every=1000)
    other, metrics, _ = run(13, check_every=1)
    assert metrics["extra_variance"] > 0
    assert all(same_bits(one[name], other[name]) for name in one)


def test_it_measures_the_same_under_a_hostile_store_and_streamed() -> None:
    for beside in ([HOSTILE_STORE], ["layer-streaming"]):
        _, metrics, _ = run(13, beside)
        assert 0 < metrics["extra_variance"] < 0.5


def test_above_the_limit_the_rest_of_the_run_is_exact(tmp_path: Path) -> None:
    config = {**settings_of(limit=1e-9, check_every=3), "run": {"dir": str(tmp_path)}}
    trainer, batches = tiny_trainer(config, [NAME])
    plugin = trainer.hooks.plugins[NAME]
    with trainer:
        for batch in batches[:8]:
            trainer.step(batch)
        trainer.save(tmp_path / "saved")
        done = plugin.collect_metrics(trainer.step(batches[8]).phase)
    events = [
        json.loads(line)
        for line in (tmp_path / "events.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    (fallen,) = [event for event in events if event["event"] == f"{NAME}.fell_back"]
    assert "of the gradient's own, over 0.00%" in fallen["reason"]
    assert (0.0, 4 * 12) == (done["low_precision_active"], done["products_low"])
    again, batches = tiny_trainer(settings_of(limit=1e-9, check_every=3), [NAME])
    with again:
        again.load(tmp_path / "saved")
        resumed = again.hooks.plugins[NAME].collect_metrics(again.step(batches[8]).phase)
    assert (0.0, 0.0) == (resumed["low_precision_active"], resumed["products_low"])
    assert done["extra_variance"] == resumed["extra_variance"]


@pytest.mark.parametrize("at", [4, 5])
def test_a_run_goes_on_between_two_micro_batches_of_a_measurement(at: int, tmp_path: Path) -> None:
    # After three updates the fourth and fifth micro-batches are measured.
    whole, metrics, digest = run(9, check_every=3)
    first, batches = tiny_trainer(settings_of(check_every=3), [NAME])
    with first:
        for batch in batches[:at]:
            first.step(batch)
        first.save(tmp_path / "saved")
    second, _ = tiny_trainer(settings_of(check_every=3), [NAME], seed=1)
    with second:
        second.load(tmp_path / "saved")
        for batch in batches[at:9]:
            result = second.step(batch)
        found = second.hooks.plugins[NAME].collect_metrics(result.phase)
        assert digest == second.digest()
    assert metrics["extra_variance"] == found["extra_variance"]
    assert all(
        torch.equal(whole[name], weight) for name, weight in tensors_of(second.model).items()
    )


def test_a_real_transformer_with_conv1d_and_a_tied_head() -> None:
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, use_cache=False)
    )
    config = settings_of(check_every=2)
    trainer = HybridTrainer(
        model, torch.optim.AdamW(model.parameters()), config=config, plugins=[NAME]
    )
    plugin: Any = trainer.hooks.plugins[NAME]
    with trainer:
        for seed in range(5):
            tokens = torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(seed))
            result = trainer.step({"input_ids": tokens, "labels": tokens})
        metrics = plugin.collect_metrics(result.phase)
    # Two embeddings, of which the head is one, are left alone; four products a block are not.
    assert (5 * 2 * 4, 0) == (metrics["products_low"], metrics["products_exact"])
    assert 0 < metrics["extra_variance"] < 0.05


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_a_cpu_is_refused_unless_asked_for(dtype: str) -> None:
    message = f"dtype = '{dtype}' would be slower .* set even_if_slower = true @ plugins"
    with pytest.raises(ConfigError, match=message):
        tiny_trainer(
            settings_of(dtype=dtype, even_if_slower=False), [NAME], device=torch.device("cpu")
        )


def test_a_gpu_without_the_kernel_is_refused_whatever_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    config = LowPrecisionBackwardConfig(dtype="fp8", even_if_slower=True)
    with pytest.raises(ConfigError, match=r"no fp8 tensor cores .*; use \"int8\""):
        check_hardware(config, torch.device("cuda"))
    check_hardware(LowPrecisionBackwardConfig(dtype="int8"), torch.device("cuda"))


def test_a_model_without_large_matrices_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    trainer, batches = tiny_trainer({"plugins": {NAME: {"even_if_slower": True}}}, [NAME])
    with trainer:
        trainer.step(batches[0])
        metrics = trainer.hooks.plugins[NAME].collect_metrics(trainer.step(batches[1]).phase)
    assert (0.0, 0.0) == (metrics["low_precision_active"], metrics["products_low"])
    assert "no_weights" in caplog.text


class Half(nn.Module):
    """A layer, and one whose checkpoint knows nothing but backward()."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.second, self.first(x), use_reentrant=True)


def steps_of(model: nn.Module, steps: int) -> dict[str, float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.randn(8, 32) for _ in range(steps)]
    trainer = HybridTrainer(
        model,
        optimizer,
        loss_fn=lambda model, batch: model(batch)[0].square().mean(),
        config=settings_of(check_every=2),
        plugins=[NAME],
    )
    with trainer:
        for batch in batches:
            result = trainer.step(batch)
        return trainer.hooks.plugins[NAME].collect_metrics(result.phase)


def test_where_it_cannot_measure_it_gives_up_and_the_run_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = steps_of(Half(), 5)
    # Two updates of two products; the checkpoint's are computed again with a graph, once.
    assert (0.0, 2 * 2) == (metrics["low_precision_active"], metrics["products_low"])
    assert "could not be measured: " in caplog.text
    assert "use_reentrant=True" in caplog.text


def test_weights_that_nobody_multiplies_with_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    metrics = steps_of(nn.LSTM(32, 32), 2)
    assert metrics["products_low"] == 0
    assert "not_met weights=2 one=weight_hh_l0" in caplog.text
    assert caplog.text.count("not_met") == 1
