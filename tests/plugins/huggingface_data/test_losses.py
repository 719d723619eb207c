"""The loss on packed and masked data is that of a reference written by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import torch
from chats_and_texts import chats, write_chats, write_texts
from support import DEVICE
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from neaptide import HybridTrainer
from neaptide.run.assembly import build_data

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONVERSATIONS = chats(24)
WAYS: dict[str, dict[str, Any]] = {
    "whole": {},
    "accumulated": {"gradient-accumulation": {"steps": 3}},
    "streamed": {"layer-streaming": {}},
    "streamed in micro-batches": {"layer-streaming": {"micro_batches": 2}},
}


def by_hand(saved: Path) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the mean loss over all tokens of the assistant, and gradients: a chat at a time."""
    model = AutoModelForCausalLM.from_pretrained(saved).to(DEVICE)
    tokenizer = AutoTokenizer.from_pretrained(saved)
    total, count = torch.zeros((), device=DEVICE), 0
    for messages in CONVERSATIONS:
        ids: list[int] = []
        answers: list[int] = []
        for one in messages:
            text = f"<|{one['role']}|>", f"{one['content']}<|end|>"
            head, body = (tokenizer(part)["input_ids"] for part in text)
            ids += head
            if one["role"] == "assistant":
                answers += range(len(ids), len(ids) + len(body))
            ids += body
        tokens = torch.tensor([ids], device=DEVICE)
        logits = model(tokens).logits[0]
        for place in answers:
            total = total + functional.cross_entropy(logits[place - 1], tokens[0, place])
        count += len(answers)
    mean = total / count
    mean.backward()
    gradients = {name: value.grad for name, value in model.named_parameters()}
    return float(mean.detach()), gradients


@pytest.fixture(scope="module")
def reference(saved: Path) -> tuple[float, dict[str, torch.Tensor]]:
    return by_hand(saved)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pack", [True, False])
def test_the_loss_of_chats_is_the_references(
    way: str,
    *,
    pack: bool,
    settings: Callable[..., Any],
    saved: Path,
    reference: tuple[float, dict[str, torch.Tensor]],
    tmp_path: Path,
) -> None:
    wanted, gradients = reference
    path = write_chats(tmp_path / "chats.jsonl", CONVERSATIONS)
    length = 160
    count = len(CONVERSATIONS)
    if pack:
        count = len(built(settings(f"jsonl:{path}", batch_size=1, length=length)).train)
    config = settings(
        f"jsonl:{path}", batch_size=count, length=length, pack=pack, plugins=WAYS[way]
    )
    with HybridTrainer.from_config(config) as trainer:
        (batch,) = build_data(config, trainer.hooks).train
        before = weights(trainer)
        result = trainer.step(batch)
        assert result.loss == pytest.approx(wanted, abs=1e-6)
        after = weights(trainer)
    for name, gradient in gradients.items():
        change = before[name] - after[name]
        assert torch.allclose(change, 1e-2 * gradient.cpu(), atol=1e-7, rtol=1e-3), name


def weights(trainer: HybridTrainer) -> dict[str, torch.Tensor]:
    found = {}
    for span in trainer.store.spans():
        with trainer.store.loan(span, "read") as weight:
            found[span.name] = weight.detach().cpu().clone()
    return found


def built(config: Any) -> Any:
    with HybridTrainer.from_config(config) as trainer:
        return build_data(config, trainer.hooks)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_another_document_changes_no_bit_of_its_neighbours(
    attention: str, settings: Callable[..., Any], saved: Path, tmp_path: Path
) -> None:
    path = write_texts(tmp_path / "texts.jsonl", 40)
    batch = next(iter(built(settings(f"jsonl:{path}", length=256)).train))
    model = AutoModelForCausalLM.from_pretrained(
        saved, attn_implementation=attention, use_cache=False
    )
    model.eval().to(DEVICE)
    batch = {name: values.to(DEVICE) for name, values in batch.items()}
    positions = batch["position_ids"][0]
    starts = [*positions.eq(0).nonzero().flatten().tolist(), len(positions)]
    assert len(starts) > 3
    with torch.no_grad():
        before = model(**batch).logits[0]
        for begin, end in pairwise(starts):
            changed = {name: values.clone() for name, values in batch.items()}
            changed["input_ids"][0, begin:end] = (batch["input_ids"][0, begin:end] + 17) % 300
            after = model(**changed).logits[0]
            same = (before == after).all(-1)
            assert bool(same[:begin].all())
            assert bool(same[end:].all())
            assert not bool(same[begin:end].any())


def test_no_target_crosses_a_boundary(settings: Callable[..., Any], tmp_path: Path) -> None:
    path = write_texts(tmp_path / "texts.jsonl", 40)
    for batch in built(settings(f"jsonl:{path}")).train:
        assert bool((batch["labels"][batch["position_ids"] == 0] == -100).all())
        kept = batch["labels"] != -100
        assert bool((batch["labels"] == batch["input_ids"])[kept].all())
