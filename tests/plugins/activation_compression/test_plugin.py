"""In a run: phases, metrics, the measured error, other plugins, and settings that are wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import CYCLE, plugin_with, same_tensors, stranger, tensors_of, tiny_trainer
from torch import nn

from neaptide import ConfigError, HybridTrainer, hookimpl
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR, tiny_loss

if TYPE_CHECKING:
    from pathlib import Path

    from neaptide import PluginSpec

SMALL = {"group": 16, "min_elements": 16}


def table(**settings: Any) -> dict[str, Any]:
    return {"activation-compression": {**SMALL, **settings}}


def losses(plugins: dict[str, Any], **config: Any) -> list[float]:
    trainer, batches = tiny_trainer(
        {"phases": CYCLE, "plugins": plugins, **config}, [STEADY_PREDICTOR]
    )
    with trainer:
        return [trainer.step(batch).loss for batch in batches[:14]]


BESIDE: dict[str, dict[str, Any]] = {
    "alone": {},
    "activation-checkpointing": {"activation-checkpointing": {"interval": 2}},
    "streaming": {"layer-streaming": {}},
    "streaming, with graphs": {"layer-streaming": {"mode": "graph"}},
    "bf16": {"mixed-precision": {"warmup": "bf16", "full": "bf16", "correct": "bf16"}},
    "fp16 at times": {"mixed-precision": {"full": "fp16"}},
    "accumulation": {"gradient-accumulation": {"steps": 3}},
    "most of them": {
        "mixed-precision": {"full": "bf16", "correct": "bf16"},
        "gradient-accumulation": {"steps": 2},
        "layer-streaming": {"mode": "graph"},
        "divergence-monitor": {},
        "ema": {},
    },
}


@pytest.mark.parametrize("name", BESIDE)
def test_beside_other_plugins(name: str) -> None:
    expected = losses(BESIDE[name])
    found = losses({**BESIDE[name], **table(check_every=3)})
    assert expected[0] == found[0], "the first forward is the same to the bit"
    assert expected != found
    assert pytest.approx(expected, rel=0.03) == found


def test_a_phase_switch_at_every_step() -> None:
    once = {
        **CYCLE,
        "warmup": {"steps": 1},
        "full": {"steps": 1},
        "correct": {"steps": 1},
    }
    expected = losses({}, phases=once)
    for phases in (["full"], ["correct", "warmup"]):
        found = losses(table(phases=phases), phases=once)
        assert expected != found
        assert pytest.approx(expected, rel=0.03) == found


def trained(steps: int, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    trainer, batches = tiny_trainer(config)
    with trainer:
        for batch in batches[:steps]:
            trainer.step(batch)
    return tensors_of(trainer.model)


def test_other_phases_are_exact() -> None:
    config = {"phases": {"warmup": {"steps": 5}}}
    expected = trained(5, config)
    for settings, same in (({"phases": ["full"]}, True), ({"phases": ["warmup"]}, False)):
        found = trained(5, {**config, "plugins": table(**settings)})
        assert same == same_tensors(expected, found)
    assert same_tensors(expected, trained(5, {**config, "plugins": table(min_elements=10_000)}))


def test_measuring_changes_nothing() -> None:
    company = {"mixed-precision": {"full": "bf16"}, "gradient-accumulation": {"steps": 2}}
    never, often, sometimes = (
        trained(12, {"phases": CYCLE, "plugins": {**company, **table(check_every=every)}})
        for every in (0, 1, 5)
    )
    assert same_tensors(never, often)
    assert same_tensors(never, sometimes)


def test_bytes_and_error_are_reported(tmp_path: Path) -> None:
    config = {
        "plugins": table(check_every=4),
        "run": {"dir": str(tmp_path / "run"), "log_every": 1},
    }
    trainer, batches = tiny_trainer(config)
    with trainer:
        assert trainer.report("activation-compression") is None
        for batch in batches[:10]:
            trainer.step(batch)
        text = trainer.report("activation-compression")
    name = "activation-compression"
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    last = {
        key.rpartition("/")[2].rpartition(".")[2]: value
        for key, value in rows[-1].items()
        if name in key
    }
    assert 0 < last["gradient_error"] < 0.02
    assert 0.5 < last["saved_share"] < 1
    assert last["held_bytes"] < 0.5 * last["exact_bytes"]
    assert text is not None
    assert "% saved)" in text
    assert "at most in 3 measurements" in text


def test_what_is_streamed_whole_is_not_measured_and_says_so(tmp_path: Path) -> None:
    plugins = {**table(), "layer-streaming": {"blocks": "*"}}
    config = {"plugins": plugins, "run": {"dir": str(tmp_path / "run")}}
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = HybridTrainer(model, optimizer, loss_fn=tiny_loss, config=config)
    _, batches = tiny_trainer()
    with trainer:
        trainer.step(batches[0])
        assert "measurements" not in str(trainer.report("activation-compression"))
    events = (tmp_path / "run" / "events.jsonl").read_text(encoding="utf-8")
    assert "activation-compression.unmeasured" in events


def gradients_of_the_first_step(plugins: dict[str, Any]) -> dict[str, torch.Tensor]:
    seen: dict[str, torch.Tensor] = {}

    @hookimpl
    def after_backward(self: Any, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                seen[name] = parameter.grad.clone()

    watching: PluginSpec = stranger(plugin_with(after_backward=after_backward), "watching")
    trainer, batches = tiny_trainer({"plugins": plugins}, [watching])
    with trainer:
        trainer.step(batches[0])
    return seen


def test_blocks_in_segments_have_the_gradients_of_checkpointing_alone() -> None:
    segments = {"activation-checkpointing": {"interval": 8}}
    expected = gradients_of_the_first_step(segments)
    found = gradients_of_the_first_step({**segments, **table(check_every=0)})
    differing = {name for name in expected if not torch.equal(expected[name], found[name])}
    assert {"head.weight"} == differing, "the one tensor that is saved outside of blocks"
    alone = gradients_of_the_first_step(table(check_every=0))
    assert torch.equal(alone["head.weight"], found["head.weight"])
    assert not torch.equal(alone["blocks.0.up.weight"], found["blocks.0.up.weight"])


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"group": 100}, "must be a power of two from 16 to 4096 (got 100)"),
        ({"group": 8}, "must be a power of two from 16 to 4096 (got 8)"),
        ({"group": 8192}, "must be a power of two from 16 to 4096 (got 8192)"),
        ({"group": -64}, "must be a power of two from 16 to 4096 (got -64)"),
        ({"group": 64.0}, "plugins.activation-compression.group"),
        ({"phases": ["predict"]}, "plugins.activation-compression.phases"),
        ({"phases": ["ful"]}, "plugins.activation-compression.phases"),
        ({"exclude": ["gelu"]}, "plugins.activation-compression.exclude"),
        ({"min_elements": 0}, "'min_elements' must be >= 1"),
        ({"check_every": -1}, "'check_every' must be >= 0"),
        ({"groups": 64}, "group"),
    ],
)
def test_wrong_settings_are_one_line(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        tiny_trainer({"plugins": table(**settings)})
    assert error in str(raised.value)
    assert "plugins.activation-compression" in str(raised.value)
    assert "\n" not in str(raised.value)


class Differentiating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        slope = torch.func.grad(lambda row: row.square().sum())(x[0])
        return self.linear(x + slope)


def test_torch_func_is_refused_with_the_way_out() -> None:
    model = Differentiating()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = HybridTrainer(
        model, optimizer, loss_fn=tiny_loss, config={"plugins": table(check_every=0)}
    )
    _, batches = tiny_trainer()
    with trainer, pytest.raises(ConfigError, match=r"torch.func .* \[plugins.activation-comp"):
        trainer.step(batches[0])


def test_an_error_in_the_forward_leaves_no_hooks() -> None:
    trainer, batches = tiny_trainer({"plugins": table()})
    with trainer:
        trainer.step(batches[0])
        with pytest.raises(KeyError):
            trainer.step({"x": batches[0]["x"]})
        assert [] == hooks_now()
        trainer.step(batches[1])
    assert [] == hooks_now()


def hooks_now() -> list[Any]:
    top = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return [] if top is None else [top]
