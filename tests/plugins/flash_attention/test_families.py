"""Families of transformers train with the plugin as without it, and are left as they were."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from huggingface_families import FAMILIES, LENGTH, WORDS, batches
from support import DEVICE
from torch import nn

from neaptide import HybridTrainer
from neaptide_plugins.flash_attention.interface import Interfaces
from neaptide_plugins.flash_attention.masks import dense, ranges_of
from neaptide_plugins.flash_attention.tally import Tally

RTOL = 1e-5
"""Largest relative difference of a loss."""
_DECODER = FAMILIES["llama"][2]
OTHERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {
            **dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0),
            "vocab_size": WORDS,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 32,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {**_DECODER, "head_dim": 8, "sliding_window": 4, "attn_logit_softcapping": 2.0},
    ),
}
CHOSEN = FAMILIES | OTHERS
TEXTS = [name for name in CHOSEN if name not in {"vit", "t5"}]


def model_of(family: str) -> Any:
    config, model, options = CHOSEN[family]
    torch.manual_seed(1)
    return getattr(transformers, model)(getattr(transformers, config)(**options))


def losses(model: nn.Module, given: list[Any], **plugins: Any) -> tuple[list[float], str | None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    config = {"plugins": plugins}
    with HybridTrainer(model, optimizer, config=config) as trainer:
        there = [{name: one.to(DEVICE) for name, one in batch.items()} for batch in given]
        found = [trainer.step(batch).loss for batch in there]
        return found, trainer.report("flash-attention") if plugins else None


def both(family: str, given: list[Any]) -> str:
    """Assert that the losses are alike and that nothing stays replaced; return the report."""
    model = model_of(family).to(DEVICE)
    before = model.config._attn_implementation
    expected, _ = losses(copy.deepcopy(model), given)
    found, report = losses(model, given, **{"flash-attention": {}})
    assert expected == pytest.approx(found, rel=RTOL)
    assert before == model.config._attn_implementation
    assert report is not None
    return report


@pytest.mark.parametrize("family", CHOSEN)
def test_losses_are_those_without_the_plugin(family: str) -> None:
    report = both(family, batches(family, 3))
    if family == "t5":
        assert "a mask or position bias that is learned" in report
    else:
        assert report == "calls of attention: 6 replaced; left: none"


@pytest.mark.parametrize("family", TEXTS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_needs_no_mask_of_all_scores(family: str, side: str) -> None:
    given = batches(family, 3)
    for place, batch in enumerate(given):
        lengths = torch.tensor([LENGTH, LENGTH - 1, 5, 2 + place])
        seen = torch.arange(LENGTH) < lengths[:, None]
        batch["attention_mask"] = (seen if side == "right" else seen.flip(1)).long()
        # The last padding before a text would predict its first word.
        first = batch["attention_mask"].argmax(1, keepdim=True)
        batch["labels"].scatter_(1, first, -100)
        batch["labels"][batch["attention_mask"] == 0] = -100
    assert both(family, given) == "calls of attention: 6 replaced; left: none"


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt2"])
def test_packed_documents_need_no_mask_of_all_scores(family: str) -> None:
    given = batches(family, 3)
    for place, batch in enumerate(given):
        lengths = [4 + place, 3, LENGTH - 7 - place]
        packed = torch.cat([torch.arange(length) for length in lengths])
        batch["position_ids"] = packed.expand(4, LENGTH)
    assert both(family, given) == "calls of attention: 6 replaced; left: none"


def test_a_mask_of_other_shape_is_taken_as_it_is() -> None:
    given = batches("llama", 2)
    holes = torch.ones(4, LENGTH, dtype=torch.long)
    holes[:, 3] = 0
    for batch in given:
        batch["attention_mask"] = holes
    report = both("llama", given)
    assert report == "calls of attention: 4 replaced (4 with a mask of all scores); left: none"


def test_a_model_with_another_choice_is_left_and_named() -> None:
    config, _, options = CHOSEN["llama"]
    made = getattr(transformers, config)(**options, attn_implementation="flex_attention")
    model = model_of("llama")
    model.config._attn_implementation_internal = made._attn_implementation
    interfaces = Interfaces(Tally())
    try:
        left = interfaces.replace(model)
    finally:
        interfaces.restore()
    assert {"LlamaForCausalLM": "attn_implementation is 'flex_attention'"} == left
    assert "flex_attention" == model.config._attn_implementation


def test_ranges_and_masks_are_each_others_inverse() -> None:
    mask = torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 1, 0]]).bool()
    ranges, are_ranges = ranges_of(mask[None, None])
    assert [[True, True, True, False]] == are_ranges.tolist()
    assert torch.equal(mask[:3], dense(ranges[:, None], 4)[0, 0, :3])
