"""What neaptide_accelerator refuses, it refuses in one line with the way out."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from accelerated import accelerator, batch, prepared
from hf_trainers import causal_lm, refusal
from support import plugin_with, stranger

from neaptide import hookimpl

pytestmark = pytest.mark.filterwarnings("ignore:.*loss_type=None.*")


@pytest.mark.parametrize(
    ("plugin", "instead"),
    [
        ("lr-schedule", "a scheduler"),
        ("gradient-accumulation", "gradient_accumulation_steps"),
        ("best-checkpoint", "save_state"),
        ("metrics", "in the loop"),
        ("lora", "peft"),
        ("predictor-drift", "the loss of a batch again"),
        ("low-precision-backward", "the loss of a batch again"),
        ("activation-compression", "check_every"),
        ("mixed-precision", "'bf16'"),
    ],
)
def test_plugins_that_cannot_work_here(plugin: str, instead: str) -> None:
    told = refusal(lambda: accelerator([plugin], {"run": {"dir": "never"}}))
    assert instead in told
    assert f"@ plugins.{plugin}" in told


def test_a_compiled_model() -> None:
    assert "dynamo_backend" in refusal(lambda: accelerator([], dynamo_backend="eager"))


def test_losses_that_accelerate_scales() -> None:
    made = accelerator([])
    made.state._mixed_precision = "fp16"  # a CPU has none
    assert any("'bf16'" in why for why in made._refused())


def test_two_who_choose_the_precision() -> None:
    config = {"plugins": {"mixed-precision": {"dtype": "bf16"}}}
    told = refusal(lambda: accelerator(["mixed-precision"], config, mixed_precision="bf16"))
    assert told.endswith("@ mixed_precision")


def test_a_plugin_that_builds_an_optimizer() -> None:
    assert "Adam8bit" in refusal(lambda: prepared(["adam8bit"]))


def test_updates_in_the_backward() -> None:
    config = {"plugins": {"layer-streaming": {"update": "in_backward"}}}
    assert "after_backward" in refusal(lambda: prepared((), config))


def test_a_second_model_and_a_second_optimizer() -> None:
    made, model, _ = prepared()
    assert "evaluation_mode" in refusal(lambda: made.prepare(causal_lm()))
    other = made.prepare_model(causal_lm(), evaluation_mode=True)
    assert other(**batch()).loss.isfinite()
    second = torch.optim.SGD(model.parameters(), lr=0.1)
    assert "in groups" in refusal(lambda: made.prepare(second))


def test_gradients_of_a_part_and_of_another_norm() -> None:
    made, model, _ = prepared()
    made.backward(model(**batch()).loss)
    some = list(model.parameters())[1:]
    assert "embed_tokens" in refusal(lambda: made.clip_grad_norm_(some, 1.0))
    assert "embed_tokens" in refusal(lambda: made.clip_grad_value_(some, 1.0))
    every = list(model.parameters())
    assert "norm_type" in refusal(lambda: made.clip_grad_norm_(every, 1.0, norm_type=1))


def test_backwards_that_the_run_does_not_see() -> None:
    made, model, optimizer = prepared()
    loss = model(**batch()).loss
    assert "retain_graph" in refusal(lambda: made.backward(loss, retain_graph=True))
    loss.backward()
    with pytest.raises(RuntimeError, match=r"accelerator\.backward"):
        optimizer.step()


def test_a_forward_that_is_no_call_of_the_model() -> None:
    made, model, _ = prepared()
    inputs = {name: one for name, one in batch().items() if name != "labels"}
    loss = model.model(**inputs).last_hidden_state.mean()
    assert "the prepared model itself" in refusal(lambda: made.backward(loss))


def before(self: Any) -> None:
    """Only has to be there."""


def changes_loss(self: Any) -> Any:
    def forward(following: Any, **arguments: Any) -> Any:
        loss = following(**arguments)
        return attrs.evolve(loss, value=loss.value * 2)

    return forward


def changes_batch(self: Any) -> Any:
    return lambda following, *, batch, **arguments: following(batch={**batch}, **arguments)


def repeats(self: Any) -> Any:
    def forward(following: Any, **arguments: Any) -> Any:
        following(**arguments)
        return following(**arguments)

    return forward


@pytest.mark.parametrize(
    ("hook", "does", "words"),
    [
        ("before_forward", before, "before_forward"),
        ("around_forward", changes_loss, "changes the loss"),
        ("around_forward", changes_batch, "changes the batch"),
        ("around_forward", repeats, "once more"),
    ],
)
def test_a_strangers_plugin_that_would_do_nothing_or_harm(hook: str, does: Any, words: str) -> None:
    does.__name__ = hook
    spec = stranger(plugin_with(**{hook: hookimpl(does)}))

    def train() -> None:
        made, model, _ = prepared([spec])
        made.backward(model(**batch()).loss)

    assert words in refusal(train)


def test_a_plugin_that_asks_for_the_loss_of_a_batch() -> None:
    probes: list[Any] = []

    def on_run_start(self: Any, probe: Any) -> None:
        probes.append(probe)

    prepared([stranger(plugin_with(on_run_start=hookimpl(on_run_start)))])
    assert "once more" in refusal(lambda: probes[0](batch()))


def test_clipping_beside_a_parameter_that_no_optimizer_has() -> None:
    made = accelerator([])
    model = causal_lm()
    optimizer = torch.optim.SGD(model.lm_head.parameters(), lr=0.1)
    model, _ = made.prepare(model, optimizer)
    made.backward(model(**batch()).loss)
    told = refusal(lambda: made.clip_grad_norm_(model.parameters(), 1.0))
    assert "is in no group of the optimizer" in told
