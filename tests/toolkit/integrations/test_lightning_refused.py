"""What a NeaptideStrategy refuses, it refuses in one line with the way out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

pytest.importorskip("lightning", reason="pip install lightning")

from hf_trainers import refusal
from light_trainers import EXPECTED, Module, fit, loader, trainer

from neaptide import ConfigError
from neaptide_toolkit.integrations.lightning import NeaptideStrategy

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.filterwarnings(f"ignore:{words}") for words in EXPECTED]
BF16 = {"plugins": {"mixed-precision": {"dtype": "bf16"}}}


@pytest.mark.parametrize(
    ("plugin", "instead"),
    [
        ("lr-schedule", "configure_optimizers"),
        ("gradient-accumulation", "accumulate_grad_batches"),
        ("best-checkpoint", "ModelCheckpoint"),
        ("background-save", "AsyncCheckpointIO"),
        ("metrics", "validation_step"),
        ("lora", "peft"),
        ("predictor-drift", "the loss of a batch again"),
        ("mixed-precision", "'bf16'"),
    ],
)
def test_plugins_that_cannot_work_here(plugin: str, instead: str) -> None:
    told = refusal(lambda: NeaptideStrategy({"run": {"dir": "never"}}, [plugin]))
    assert instead in told
    assert f"@ plugins.{plugin}" in told


def test_settings_that_would_have_no_effect() -> None:
    assert "@ train.clip_norm" in refusal(lambda: NeaptideStrategy({"train": {"clip_norm": 1.0}}))


class TwoOptimizers(Module):
    """As a GAN has them."""

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]


class OwnBackward(Module):
    """With a backward of its own."""

    def backward(self, loss: Any) -> None:
        loss.backward()


class Retains(Module):
    """With an argument of the backward."""

    def training_step(self, batch: Any, _: int) -> None:
        self.manual_backward(self.model(**batch).loss, retain_graph=True)


class Bypasses(Module):
    """With a backward that the strategy does not see."""

    def training_step(self, batch: Any, _: int) -> None:
        self.model(**batch).loss.backward()
        self.optimizers().step()


class Deep(Module):
    """With a call of a part of a part."""

    def training_step(self, batch: Any, _: int) -> None:
        inputs = {name: one for name, one in batch.items() if name != "labels"}
        self.manual_backward(self.model.model(**inputs).last_hidden_state.mean())


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (partial(TwoOptimizers, manual=True), "one optimizer"),
        (OwnBackward, "remove backward"),
        (partial(Retains, manual=True), "retain_graph"),
        (partial(Deep, manual=True), "in an attribute"),
    ],
)
def test_modules_that_cannot_be_trained_so(module: Any, words: str) -> None:
    assert words in refusal(lambda: trainer([]).fit(module(), loader(4)))


def test_a_backward_that_the_run_does_not_see() -> None:
    with pytest.raises(RuntimeError, match=r"self\.manual_backward"):
        trainer([]).fit(Bypasses(manual=True), loader(4))


@pytest.mark.parametrize(
    ("config", "settings", "module", "words"),
    [
        (BF16, {"precision": "bf16-mixed"}, Module, "@ precision"),
        (BF16, {}, partial(Module, manual=True), "a manual loss"),
        ({}, {"precision": "64-true"}, Module, "@ precision"),
        (
            {"plugins": {"layer-streaming": {"update": "in_backward"}}},
            {},
            Module,
            "after_backward",
        ),
    ],
)
def test_settings_of_the_trainer(config: Any, settings: Any, module: Any, words: str) -> None:
    assert words in refusal(lambda: trainer((), config, **settings).fit(module(), loader(4)))


def test_a_module_that_is_compiled_as_a_whole() -> None:
    compiled = torch.compile(Module(), backend="eager")
    assert "its blocks" in refusal(lambda: trainer([]).fit(compiled, loader(4)))


def test_several_devices() -> None:
    strategy = NeaptideStrategy()
    with pytest.raises(ConfigError, match="devices=1"):
        strategy.parallel_devices = [torch.device("cpu")] * 2


def test_a_checkpoint_after_the_fit_has_no_state_of_plugins(tmp_path: Path) -> None:
    done = fit(["ema"], max_epochs=1)
    with pytest.warns(UserWarning, match="ModelCheckpoint"):
        done.trainer.save_checkpoint(tmp_path / "late.ckpt")


class Keeps(Module):
    """Would keep the gradients."""

    def optimizer_zero_grad(self, *_: Any) -> None:
        pass


def test_a_module_that_does_not_zero_gradients_is_told() -> None:
    with pytest.warns(UserWarning, match="optimizer_zero_grad of the module has no effect"):
        trainer([], max_epochs=1).fit(Keeps(), loader(4))


class Partly(Module):
    """Trains a part of its parameters."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.model.lm_head.parameters(), lr=0.1)


def test_clipping_beside_a_parameter_that_no_optimizer_has() -> None:
    fitted = trainer([], max_epochs=1, gradient_clip_val=1.0)
    told = refusal(lambda: fitted.fit(Partly(), loader(4)))
    assert "is in no group of the optimizer" in told
