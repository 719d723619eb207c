"""A loop with neaptide_accelerator trains as with accelerate alone, to the bit."""

from __future__ import annotations

import copy
import csv
from typing import TYPE_CHECKING, Any

import pytest
import torch
from accelerated import accelerator, assert_alike, batch, clipped, loop, prepared
from hf_trainers import causal_lm, rows
from support import DEVICE
from transformers import set_seed

from neaptide import HybridTrainer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*loss_type=None.*"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*"),
]
ALL = ["layer-streaming", "optimizer-offload", "divergence-monitor", "profiler"]
BF16 = {"plugins": {"mixed-precision": {"dtype": "bf16"}}}
COMPRESSED = {"plugins": {"activation-compression": {"check_every": 0, "min_elements": 1}}}


@pytest.mark.parametrize(
    ("plugins", "accumulated", "precision"),
    [(ALL, 4, "bf16"), (ALL, 4, "no"), ([], 1, "no"), (["activation-checkpointing"], 1, "bf16")],
)
def test_a_loop_trains_alike(plugins: list[str], accumulated: int, precision: str) -> None:
    given = {"gradient_accumulation_steps": accumulated, "mixed_precision": precision}
    assert_alike(loop(plugins, **given), loop(**given))


def test_a_training_goes_on_from_its_own_and_from_plain_checkpoints(tmp_path: Path) -> None:
    given: dict[str, Any] = {"gradient_accumulation_steps": 2}
    whole = loop(save=tmp_path / "plain", **given)
    assert_alike(loop(ALL, save=tmp_path / "ours", **given), whole)
    assert (tmp_path / "ours" / "neaptide").is_dir()
    for plugins, folder in ((ALL, "ours"), (ALL, "plain"), (None, "ours")):
        assert_alike(loop(plugins, load=tmp_path / folder, **given), whole)


def twice(model: Any, batch: Any) -> torch.Tensor:
    """Return a loss of two forwards, the second of which has other inputs."""
    second = {**batch, "input_ids": batch["input_ids"].flip(1)}
    return model(**batch).loss + 0.5 * model(**second).loss  # type: ignore[no-any-return]


def outside(model: Any, batch: Any) -> torch.Tensor:
    """Return a loss that the loop computes from the logits."""
    logits = model(input_ids=batch["input_ids"]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["input_ids"].flatten())


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("loss_of", [twice, outside])
def test_losses_that_the_loop_computes(loss_of: Any, steps: int) -> None:
    given: dict[str, Any] = {"loss_of": loss_of, "gradient_accumulation_steps": steps}
    assert_alike(loop(ALL, **given), loop(**given))


def between(model: Any, batch: Any) -> torch.Tensor:
    """Return a loss of two forwards with an evaluation between them."""
    first = model(**batch).loss
    with torch.no_grad():
        scale = model(**batch).loss
    return first + scale * model(**{**batch, "input_ids": batch["input_ids"].flip(1)}).loss  # type: ignore[no-any-return]


def test_an_evaluation_between_two_forwards_of_a_loss() -> None:
    given: dict[str, Any] = {"loss_of": between, "gradient_accumulation_steps": 2}
    assert_alike(loop(["layer-streaming"], **given), loop(**given))


def test_a_model_that_is_trained_in_eval_mode_stays_in_it() -> None:
    plugins = ["activation-checkpointing"]
    ours, theirs = loop(plugins, mode=False), loop(mode=False)
    assert_alike(ours, theirs)
    assert ours[0] != loop()[0]


def test_values_are_clipped_alike() -> None:
    def clip(made: Any, model: Any) -> None:
        made.clip_grad_value_(model.parameters(), 1e-3)

    assert_alike(loop(ALL, clip=clip), loop(clip=clip))


@pytest.mark.parametrize(
    ("plugin", "config"), [("mixed-precision", BF16), ("activation-compression", COMPRESSED)]
)
def test_a_plugin_that_rounds_does_what_it_does_in_a_hybrid_trainer(
    plugin: str, config: Any
) -> None:
    ours = loop([plugin], config=config, clip=lambda *_: None)
    set_seed(1)
    model = causal_lm().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 10)
    loader = torch.utils.data.DataLoader(rows(count=12), batch_size=2)
    with HybridTrainer(
        model, optimizer, loss_fn=lambda m, b: m(**b).loss, config=config, plugins=[plugin]
    ) as trainer:
        for _ in range(2):
            for one in loader:
                trainer.step({name: each.to(DEVICE) for name, each in one.items()})
                scheduler.step()
    for name, weight in model.state_dict().items():
        assert torch.equal(ours[1][name].cpu(), weight.cpu()), name


def test_outputs_in_low_precision_come_back_as_fp32() -> None:
    _, model, _ = prepared(["mixed-precision"], BF16)
    assert model(**batch()).logits.dtype == torch.float32


def test_losses_of_several_forwards_add_their_gradients() -> None:
    made, model, _ = prepared()
    model.eval()
    first, second = (model(**batch()).logits[row].square().mean() for row in range(2))
    made.backward(first + second)
    both = model.lm_head.weight.grad.clone()
    model.zero_grad()
    for row in range(2):
        made.backward(model(**batch()).logits[row].square().mean())
    assert torch.allclose(model.lm_head.weight.grad, both)


def test_a_closure_is_called_once_and_its_loss_returned() -> None:
    made, model, optimizer = prepared()
    losses = []

    def closure() -> torch.Tensor:
        loss = model(**batch()).loss
        made.backward(loss)
        losses.append(loss)
        return loss

    before = model.lm_head.weight.clone()
    optimizer.step(closure)
    assert len(losses) == 1
    assert not torch.equal(model.lm_head.weight, before)


def test_without_gradients_an_update_changes_nothing() -> None:
    _, model, optimizer = prepared()
    before = copy.deepcopy(model.state_dict())
    optimizer.step()
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


def test_a_copy_of_a_prepared_model_is_its_own() -> None:
    made, model, optimizer = prepared()
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.zero_()
    made.backward(model(**batch()).loss)
    optimizer.step()
    assert not other(**batch()).logits.any()
    assert model(**batch()).logits.any()


def test_afterwards_the_model_is_an_ordinary_one_and_can_be_prepared_again() -> None:
    made, model, optimizer = prepared(["layer-streaming"])
    made.backward(model(**batch()).loss)
    optimizer.step()
    made.free_memory()
    assert "forward" not in vars(model)
    real = torch.optim.SGD(model.parameters(), lr=0.1)
    again = accelerator(["layer-streaming"])
    model, optimizer = again.prepare(model, real)
    again.backward(model(**batch()).loss)
    optimizer.step()
    again.end_training()
    here = {name: one.cpu() for name, one in batch().items()}
    assert torch.isfinite(model.cpu()(**here).loss)


def test_an_update_that_is_not_finite_is_skipped_and_leaves_the_schedule() -> None:
    made, model, optimizer = prepared()
    scheduler = made.prepare(torch.optim.lr_scheduler.ExponentialLR(optimizer.optimizer.real, 0.5))
    for factor, rate in ((1.0, 0.05), (float("nan"), 0.05), (1.0, 0.025)):
        made.backward(model(**batch()).loss * factor)
        optimizer.step()
        scheduler.step()
        assert scheduler.get_last_lr() == [rate]
    assert torch.isfinite(model.lm_head.weight).all()


def test_a_step_is_recorded_with_the_loss_and_the_norm_of_the_loop(tmp_path: Path) -> None:
    config = {"run": {"dir": str(tmp_path / "run")}}
    seen, _ = loop([], config=config, gradient_accumulation_steps=2)
    with (tmp_path / "run" / "steps.csv").open() as file:
        written = list(csv.DictReader(file))
    losses = [one[0] for one in seen if isinstance(one, tuple)]
    assert [float(row["loss"]) for row in written[3:]] == pytest.approx(
        [(first + second) / 2 for first, second in zip(losses[::2], losses[1::2], strict=True)]
    )
    assert [float(row["grad_norm"]) for row in written[3:]] == [seen[1], seen[4], seen[7]]


def test_an_evaluation_can_be_that_of_the_averaged_weights() -> None:
    made, model, optimizer = prepared(["ema"])
    for _ in range(3):
        made.backward(model(**batch()).loss)
        clipped(made, model)
        optimizer.step()

    def evaluate() -> float:
        with torch.no_grad():
            return float(model(**batch()).loss)

    model.eval()
    trained = evaluate()
    assert made.evaluation(evaluate) != trained
    assert evaluate() == trained
