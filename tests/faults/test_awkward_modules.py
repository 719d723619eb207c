"""Modules of every odd kind train and resume to the bit, or are refused in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from awkward_nets import NETS, TRAINABLE, UNTRAINABLE, WIDTH, Complex, Lazy
from support import CYCLE

from neaptide import CheckpointError, ConfigError, HybridTrainer, NeaptideError
from neaptide_toolkit.testing.parting import same_bits

if TYPE_CHECKING:
    from pathlib import Path

STEPS, SAVED = 12, 7

PLUGINS: dict[str, dict[str, Any]] = {
    "activation-checkpointing": {},
    "divergence-monitor": {},
    "ema": {},
    "gradient-accumulation": {"steps": 2},
    "layer-streaming": {"optimizer_on": "device"},
    "mixed-precision": {"full": "bf16", "predict": "bf16"},
    "predictor-drift": {"min_window": 4, "sample_every": 1},
    "profiler": {},
}


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(6, WIDTH, generator=generator) for _ in range(STEPS)]


def trainer_for(make: Any, plugins: dict[str, Any]) -> HybridTrainer:
    torch.manual_seed(0)
    config = {"phases": CYCLE, "plugins": plugins, "train": {"clip_norm": 1.0}}
    return HybridTrainer(make(), loss_fn=lambda model, batch: model(batch), config=config)


def resumed_is_the_same(make: Any, plugins: dict[str, Any], root: Path) -> None:
    with trainer_for(make, plugins) as trainer:
        start = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        for index, batch in enumerate(batches()):
            if index == SAVED:
                trainer.save(root / "saved")
            trainer.step(batch)
        expected = trainer.digest()
        moved = [
            name
            for name, value in trainer.model.state_dict().items()
            if not same_bits(start[name], value)
        ]
    assert moved
    with trainer_for(make, plugins) as trainer:
        trainer.load(root / "saved")
        for batch in batches()[SAVED:]:
            trainer.step(batch)
        assert expected == trainer.digest()


def attempt(make: Any, plugins: dict[str, Any], root: Path) -> str:
    """Return the line the combination is refused with, or nothing if it trains and resumes."""
    try:
        resumed_is_the_same(make, plugins, root)
    except NeaptideError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", TRAINABLE)
def test_alone_it_trains_and_resumes_to_the_bit(tmp_path: Path, name: str) -> None:
    assert "" == attempt(TRAINABLE[name], {}, tmp_path)


REFUSED = {
    (name, plugin): "has no repeated blocks"
    for name in TRAINABLE.keys() - NETS
    for plugin in ("activation-checkpointing", "layer-streaming")
}
"""What a plugin says it cannot do with a module, by module and plugin."""


def agrees(name: str, plugin: str, root: Path) -> None:
    found = attempt(TRAINABLE[name], {plugin: PLUGINS[plugin]}, root)
    expected = REFUSED.get((name, plugin), "")
    assert bool(expected) == bool(found), found
    assert expected in found
    assert "\n" not in found


@pytest.mark.parametrize("name", sorted(TRAINABLE.keys() - NETS))
def test_with_a_plugin_that_copies_and_one_that_predicts(tmp_path: Path, name: str) -> None:
    for plugin in ("ema", "predictor-drift"):
        agrees(name, plugin, tmp_path / plugin)


@pytest.mark.slow
@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("name", TRAINABLE)
def test_with_each_plugin(tmp_path: Path, name: str, plugin: str) -> None:
    agrees(name, plugin, tmp_path)


@pytest.mark.parametrize(("name", "make"), UNTRAINABLE.items())
def test_what_cannot_be_trained_is_refused_in_one_line(name: str, make: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        trainer_for(make, {})
    assert "\n" not in str(caught.value)
    expected = "run one batch through the model first" if name == "lazy" else "no trainable"
    assert expected in str(caught.value)


def test_a_lazy_module_trains_once_it_has_seen_a_batch(tmp_path: Path) -> None:
    def made() -> Lazy:
        model = Lazy()
        model(torch.ones(1, WIDTH))
        return model

    resumed_is_the_same(made, {}, tmp_path)


def test_what_the_format_cannot_hold_is_refused_when_saving(tmp_path: Path) -> None:
    with trainer_for(lambda: Complex(torch.complex128), {}) as trainer:
        trainer.step(batches()[0])
        with pytest.raises(CheckpointError, match=r"cannot save torch\.complex128"):
            trainer.save(tmp_path / "saved")
        assert not (tmp_path / "saved").exists()
        assert 2 == trainer.step(batches()[1]).step


OUTPUTS: dict[str, Any] = {
    "a tuple": lambda loss: (loss, None),
    "a dict": lambda loss: {"loss": loss},
    "None": lambda loss: None,
    "a number": lambda loss: 1.0,
    "a vector": lambda loss: loss.expand(3),
    "no graph": lambda loss: loss.detach(),
    "an integer": lambda loss: loss.long(),
    "complex": lambda loss: loss + 1j,
}


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_loss_that_is_none_says_so_in_one_line(output: str) -> None:
    model = torch.nn.Linear(WIDTH, 1)
    with HybridTrainer(
        model, loss_fn=lambda model, batch: OUTPUTS[output](model(batch).square().mean())
    ) as trainer:
        before = model.weight.detach().clone()
        with pytest.raises((TypeError, NeaptideError, RuntimeError)) as caught:
            trainer.step(batches()[0])
        assert "\n" not in str(caught.value)
        assert same_bits(before, model.weight)


@pytest.mark.parametrize("output", ["a tuple", "a dict", "None"])
def test_without_a_loss_function_outputs_follow_the_convention(output: str) -> None:
    class Net(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return OUTPUTS[output](super().forward(x).square().mean())

    with HybridTrainer(Net(WIDTH, 1)) as trainer:
        if output == "a dict":
            assert 1 == trainer.step({"x": batches()[0]}).step
        else:
            with pytest.raises(NeaptideError, match=r"must return an object with \.loss"):
                trainer.step({"x": batches()[0]})
