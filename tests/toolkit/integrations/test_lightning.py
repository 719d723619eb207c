"""A NeaptideStrategy with exact plugins trains as Lightning alone does, to the bit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

pytest.importorskip("lightning", reason="pip install lightning")

from hf_trainers import rows
from light_trainers import EXPECTED, Module, assert_same, fit, loader, trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging

from neaptide.tensors import mapped
from neaptide_plugins.adam8bit.optimizer import Adam8bit

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.filterwarnings(f"ignore:{words}") for words in EXPECTED]
ALL = ["layer-streaming", "optimizer-offload", "divergence-monitor", "profiler"]
MANUAL = partial(Module, manual=True, accumulated=2)


@pytest.mark.parametrize(
    ("plugins", "settings"),
    [
        (ALL, {"accumulate_grad_batches": 4, "val_check_interval": 2, "gradient_clip_val": 1.0}),
        ([], {"gradient_clip_val": 1.0}),
        (ALL, {"precision": "bf16-mixed", "accumulate_grad_batches": 2}),
        (["activation-checkpointing"], {"precision": "bf16-true"}),
        (
            ["layer-streaming"],
            {"gradient_clip_val": 1e-3, "gradient_clip_algorithm": "value"},
        ),
    ],
)
def test_a_module_is_trained_alike(plugins: list[str], settings: dict[str, Any]) -> None:
    assert_same(fit(plugins, **settings), fit(**settings))


@pytest.mark.parametrize("plugins", [ALL, ["activation-checkpointing"]])
@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_manual_optimization_is_alike(plugins: list[str], precision: Any) -> None:
    given: dict[str, Any] = {"module": MANUAL, "precision": precision}
    assert_same(fit(plugins, **given), fit(**given))


@pytest.mark.parametrize("module", [Module, MANUAL])
def test_a_fit_goes_on_from_its_own_and_from_plain_checkpoints(tmp_path: Path, module: Any) -> None:
    given: dict[str, Any] = {"module": module}
    fit(save=tmp_path / "plain", max_epochs=1, **given)
    theirs = fit(load=tmp_path / "plain" / "x.ckpt", **given)
    fit(ALL, save=tmp_path / "ours", max_epochs=1, **given)
    for plugins, folder in ((ALL, "ours"), (ALL, "plain"), (None, "ours")):
        assert_same(fit(plugins, load=tmp_path / folder / "x.ckpt", **given), theirs)


def test_plugins_go_on_where_they_were(tmp_path: Path) -> None:
    class Watched(Module):
        def __init__(self) -> None:
            super().__init__()
            for part in self.modules():  # Lightning does not restore the random state
                if hasattr(part, "attention_dropout"):
                    part.attention_dropout = 0.0

        def on_train_end(self) -> None:
            hybrid = self.trainer.strategy._pieces.hybrid
            averages = hybrid.hooks.plugins["ema"].state_dict()
            ends.append((averages, hybrid.state.step, hybrid.state.batches))

    ends: list[Any] = []
    given: dict[str, Any] = {"module": Watched, "limit_val_batches": 0}
    plugins = ["ema", "optimizer-offload"]
    whole = fit(plugins, **given)
    fit(plugins, save=tmp_path, max_epochs=1, **given)
    resumed = fit(plugins, load=tmp_path / "x.ckpt", **given)
    (averages, *counts), _, (again, *counted) = ends
    assert counted == counts == [12, 12]
    assert str(mapped(averages, torch.Tensor.tolist)) == str(mapped(again, torch.Tensor.tolist))
    for name, weight in whole.weights.items():
        assert torch.equal(resumed.weights[name].cpu(), weight.cpu())


def test_an_optimizer_of_8_bits_steps_alike() -> None:
    class Small(Module):
        def make_optimizer(self) -> Any:
            return Adam8bit(self.parameters(), lr=1e-2)

    assert_same(fit(ALL, module=Small), fit(module=Small))


def test_a_step_without_a_loss_is_passed_over() -> None:
    class Passes(Module):
        def training_step(self, batch: Any, place: int) -> Any:
            loss = super().training_step(batch, place)
            return None if place % 3 == 0 else {"loss": loss, "more": 1}

    with pytest.warns(UserWarning, match="returned `None`"):
        ours = fit(["layer-streaming"], module=Passes, accumulate_grad_batches=2)
    assert_same(ours, fit(module=Passes, accumulate_grad_batches=2))


class Blocks(Module):
    """Parts in a list, called one by one, with a loss and updates by hand."""

    def __init__(self) -> None:
        super().__init__(manual=True)
        self.model = None
        self.parts = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

    def forward(self, batch: Any) -> Any:
        inputs = batch["input_ids"][:, :8].float() / 48
        for part in self.parts:
            inputs = part(inputs).tanh()
        return inputs

    def loss(self, batch: Any) -> Any:
        return self(batch).square().mean()

    def training_step(self, batch: Any, place: int) -> None:
        optimizer = self.optimizers()
        for _ in range(2):
            loss = self.loss(batch)
            self.seen.append(loss.item())
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def validation_step(self, batch: Any, _: int) -> None:
        self.seen.append(self.loss(batch).item())


def test_several_updates_in_one_manual_step() -> None:
    class PartByPart(Blocks):
        def loss(self, batch: Any) -> Any:
            return Blocks.forward(self, batch).square().mean()

    for module in (Blocks, PartByPart):
        assert_same(fit(["layer-streaming"], module=module), fit(module=module))


@pytest.mark.filterwarnings("ignore:SWA is currently only supported every epoch.*")
def test_a_callback_that_averages_weights_and_makes_a_schedule() -> None:
    ours, theirs = (
        fit(plugins, callbacks=[StochasticWeightAveraging(1e-2, swa_epoch_start=1)], max_epochs=3)
        for plugins in (["layer-streaming"], None)
    )
    assert_same(ours, theirs)


def test_validation_keeps_buffers_and_may_see_averaged_weights() -> None:
    ours, theirs = fit(["ema"]), fit()
    assert ours.module.evaluated == theirs.module.evaluated > 0
    for name, weight in theirs.weights.items():
        assert torch.equal(ours.weights[name].cpu(), weight.cpu())
    assert ours.module.seen != theirs.module.seen


@pytest.mark.filterwarnings("ignore:.*test_dataloader.*:UserWarning")
def test_outside_of_a_fit_a_streamed_model_is_evaluated_alike() -> None:
    ours, theirs = fit(["layer-streaming", "ema"], limit_val_batches=0), fit(limit_val_batches=0)
    for done in (ours, theirs):
        done.module.seen.clear()
        done.trainer.validate(done.module, loader(4), verbose=False)
        done.trainer.test(done.module, loader(4), verbose=False)
        logits = done.trainer.predict(done.module, loader(4))
        done.module.seen.append(torch.stack(logits).tolist())
    assert ours.module.seen == theirs.module.seen


def test_a_second_fit_goes_on_alike() -> None:
    ours, theirs = fit(ALL), fit()
    for done in (ours, theirs):
        again = trainer(ALL if done is ours else None)
        torch.manual_seed(2)
        again.fit(done.module, loader(12))
    mine, other = ours.module.state_dict(), theirs.module.state_dict()
    assert all(torch.equal(mine[name].cpu(), other[name].cpu()) for name in other)


def test_after_an_error_the_module_is_whole_again() -> None:
    class Broken(Module):
        def on_before_zero_grad(self, _: Any) -> None:
            if self.global_step == 2:
                msg = "out of ideas"
                raise RuntimeError(msg)

    module = Broken()
    made = trainer(["layer-streaming"])
    with pytest.raises(RuntimeError, match="out of ideas"):
        made.fit(module, loader(12))
    batch = torch.utils.data.default_collate(rows(count=2))
    assert torch.isfinite(module.cpu().model(**batch).loss)
    assert isinstance(made.optimizers[0], torch.optim.AdamW)
    assert "run" not in vars(made.fit_loop.epoch_loop.val_loop)
