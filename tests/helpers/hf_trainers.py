"""Runs of transformers' own Trainer and of ours, for comparison: models, data, what they did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
import torch
import transformers
from support import DEVICE

from neaptide import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_WORDS = 48
_FIRST = torch.zeros(1, dtype=torch.long, device="cpu")
_TIMES = ("runtime", "per_second", "preparation_time")


def causal_lm() -> Any:
    """Return a tiny Llama with dropout in its attention."""
    config = transformers.LlamaConfig(
        vocab_size=_WORDS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        attention_dropout=0.1,
    )
    return transformers.LlamaForCausalLM(config)


def seq2seq() -> Any:
    """Return a tiny T5, whose loss takes no `num_items_in_batch`."""
    config = transformers.T5Config(
        vocab_size=_WORDS,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def classifier() -> Any:
    """Return a tiny Bert with two classes."""
    config = transformers.BertConfig(
        vocab_size=_WORDS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    return transformers.BertForSequenceClassification(config)


MODELS = {"causal LM": causal_lm, "seq2seq": seq2seq, "classification": classifier}


def rows(kind: str = "causal LM", count: int = 11, length: int = 10) -> list[dict[str, Any]]:
    """Return samples; of the texts, a different share of the targets does not count in each."""
    generator = torch.Generator("cpu").manual_seed(0)
    found = []
    for _ in range(count):
        ids = torch.randint(3, _WORDS, (length,), generator=generator, device="cpu")
        labels = ids.clone()
        labels[: int(torch.randint(length - 2, (), generator=generator, device="cpu"))] = -100
        sample = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if kind == "seq2seq":  # label smoothing keeps the labels from the model, which needs these
            sample["decoder_input_ids"] = labels.clamp(min=0).roll(1).index_fill(0, _FIRST, 0)
        found.append({**sample, "labels": ids[0] % 2 if kind == "classification" else labels})
    return found


class Heard(transformers.TrainerCallback):  # type: ignore[misc] - transformers has no types here
    """Lists each event, with what a callback can see of the step."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def hear(_args: Any, state: Any, _control: Any, **known: Any) -> None:
            norm = None
            if name == "on_pre_optimizer_step":  # gradients, before the update
                trained = [one.grad for one in known["model"].parameters() if one.requires_grad]
                norms = [gradient.cpu().norm() for gradient in trained]
                norm = float(torch.stack(norms).norm())
            self.events.append((name, state.global_step, norm))

        return hear


@attrs.frozen(eq=False)
class Done:
    """What a training left."""

    trainer: Any
    logs: list[dict[str, Any]]
    """What Trainer logged, without times."""
    events: list[tuple[Any, ...]]
    weights: dict[str, torch.Tensor]


def train(
    cls: Any,
    folder: Path,
    kind: str = "causal LM",
    *,
    resume: str | None = None,
    callbacks: tuple[Any, ...] = (),
    given: dict[str, Any] | None = None,
    arguments_of: Any = transformers.TrainingArguments,
    **settings: Any,
) -> Done:
    """Train with `cls`; `given` are more arguments of the trainer, `settings` those of training."""
    transformers.set_seed(1)
    heard, data = Heard(), rows(kind)
    arguments = arguments_of(
        str(folder),
        use_cpu=DEVICE.type == "cpu",
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
        per_device_train_batch_size=2,
        **{"num_train_epochs": 1, "save_strategy": "no", "learning_rate": 1e-2, **settings},
    )
    more = {"train_dataset": data, "eval_dataset": data[:3], **(given or {})}
    trainer = cls(MODELS[kind](), arguments, callbacks=[heard, *callbacks], **more)
    trainer.train(resume_from_checkpoint=resume)
    weights = {name: one.clone() for name, one in trainer.model.state_dict().items()}
    return Done(trainer, logs_of(trainer), heard.events, weights)


def logs_of(trainer: Any) -> list[dict[str, Any]]:
    """Return what a trainer has logged, without times."""
    return [
        {name: one for name, one in line.items() if not name.endswith(_TIMES)}
        for line in trainer.state.log_history
    ]


def assert_same(ours: Done, theirs: Done) -> None:
    """Check that losses, norms, rates, events and weights are equal to the bit."""
    assert ours.logs == theirs.logs
    assert ours.events == theirs.events
    assert ours.weights.keys() == theirs.weights.keys()
    for name, weight in theirs.weights.items():
        assert torch.equal(ours.weights[name].cpu(), weight.cpu()), name


def refusal(call: Callable[[], Any]) -> str:
    """Return the one line of the ConfigError that a call raises."""
    with pytest.raises(ConfigError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)
