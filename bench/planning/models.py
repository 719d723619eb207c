"""Small models of transformers with random weights, and recurrent ones, for configurations to name.

For example `[model] name = "planning.models:family"`, with `name = "mixtral"` as an option.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from neaptide import Data, Task

if TYPE_CHECKING:
    from collections.abc import Callable

VOCABULARY, WIDTH, LAYERS, HEADS = 512, 128, 3, 4
ROWS, LENGTH, SIDE = 8, 64, 32
_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 4 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    **_ENDS,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2, "head_dim": WIDTH // HEADS}
_VISION = {
    key: _SIZES[key]
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
}
_BOTH = {
    f"{side}_{what}": number
    for side in ("encoder", "decoder")
    for what, number in {"layers": 2, "attention_heads": HEADS, "ffn_dim": 4 * WIDTH}.items()
}
_SIDES = {"vocab_size": VOCABULARY, "d_model": WIDTH, "decoder_start_token_id": 1, **_BOTH, **_ENDS}


def _made(name: str, head: str, **options: Any) -> nn.Module:
    import transformers  # noqa: PLC0415 - takes seconds

    made: nn.Module = getattr(transformers, name + head)(
        getattr(transformers, f"{name}Config")(**options)
    )
    return made


def _causal(name: str, **options: Any) -> Callable[[], nn.Module]:
    return partial(_made, name, "ForCausalLM", **{**_GROUPED, **options})


def _mixtral(experts: str) -> nn.Module:
    model = _causal("Mixtral", num_local_experts=4, num_experts_per_tok=2)()
    model.set_experts_implementation(experts)  # type: ignore[operator]  # of transformers' models
    return model


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "gpt2": partial(
        _made,
        "GPT2",
        "LMHeadModel",
        vocab_size=VOCABULARY,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        n_positions=LENGTH,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "llama": _causal("Llama"),
    "mistral": _causal("Mistral", sliding_window=16),
    "qwen2": _causal("Qwen2"),
    "gemma": _causal("Gemma"),
    "mixtral": partial(_mixtral, "eager"),
    "mixtral, grouped": partial(_mixtral, "grouped_mm"),
    "olmoe": _causal("Olmoe", num_experts=8, num_experts_per_tok=2, intermediate_size=WIDTH),
    "bert": partial(_made, "Bert", "ForMaskedLM", **_SIZES),
    "t5": partial(
        _made,
        "T5",
        "ForConditionalGeneration",
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=WIDTH // HEADS,
        d_ff=4 * WIDTH,
        num_layers=2,
        num_heads=HEADS,
        decoder_start_token_id=0,
    ),
    "bart": partial(
        _made, "Bart", "ForConditionalGeneration", max_position_embeddings=LENGTH, **_SIDES
    ),
    "mamba": partial(
        _made,
        "Mamba",
        "ForCausalLM",
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        state_size=8,
        num_hidden_layers=2,
        pad_token_id=0,
    ),
    "vit": partial(
        _made, "ViT", "ForImageClassification", image_size=SIDE, patch_size=4, **_VISION
    ),
    "convnext": partial(
        _made,
        "ConvNext",
        "ForImageClassification",
        hidden_sizes=[32, 64],
        depths=[2, 2],
        num_stages=2,
        patch_size=2,
    ),
    "resnet": partial(
        _made,
        "ResNet",
        "ForImageClassification",
        embedding_size=16,
        hidden_sizes=[32, 64],
        depths=[2, 2],
        layer_type="basic",
    ),
}


def _loss(model: nn.Module, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = model(**batch).loss
    return loss


def _mean_of_squares(model: nn.Module, batch: Any) -> torch.Tensor:
    made = model(batch)
    loss: torch.Tensor = (made[0] if isinstance(made, tuple) else made).square().mean()
    return loss


def family(name: str) -> Task:
    """Return a model of one of `FAMILIES`."""
    return Task(FAMILIES[name](), _loss)


def tokens() -> Data:
    """Return batches of tokens with labels."""
    torch.manual_seed(0)
    drawn = [torch.randint(3, VOCABULARY, (ROWS, LENGTH)) for _ in range(4)]
    return Data([{"input_ids": one, "labels": one} for one in drawn])


def images(side: int = SIDE) -> Data:
    """Return batches of images with labels."""
    torch.manual_seed(0)
    labels = torch.arange(ROWS) % 2
    return Data(
        [{"pixel_values": torch.randn(ROWS, 3, side, side), "labels": labels} for _ in range(4)]
    )


def of_timm(name: str, img_size: int | None = None) -> Task:
    """Return a model of timm. `python bench/plan.py` needs `pip install timm` for it."""
    _import_torchvision()
    import timm  # noqa: PLC0415 - not always there

    sizes = {} if img_size is None else {"img_size": img_size}
    model = timm.create_model(name, num_classes=16, **sizes)
    return Task(model, lambda model, batch: _of_classes(model(batch["pixel_values"]), batch))


def _of_classes(scores: torch.Tensor, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(scores, batch["labels"])


def _import_torchvision() -> None:
    """Import what timm imports, also where its compiled operators do not fit this torch.

    The models call none of them. Without their names the import fails, so they get names.
    """
    operators, register = (
        torch.library.Library("torchvision", "FRAGMENT"),
        torch.library.register_fake,
    )

    def named(operator: Any, *given: Any, **options: Any) -> Any:
        space, _, name = str(operator).partition("::")
        if space == "torchvision" and not hasattr(torch.ops.torchvision, name):
            operators.define(f"{name}(Tensor one) -> Tensor")
        return register(operator, *given, **options)

    torch.library.register_fake = named
    try:
        import torchvision  # noqa: F401, PLC0415 - see above
    finally:
        torch.library.register_fake = register
    _KEPT.append(operators)  # the names go with it


_KEPT: list[Any] = []


def recurrent(kind: str, layers: int = 2, *, bidirectional: bool = False) -> Task:
    """Return an `RNN`, `GRU` or `LSTM` of PyTorch."""
    made = getattr(nn, kind)(WIDTH, WIDTH, layers, batch_first=True, bidirectional=bidirectional)
    return Task(made, _mean_of_squares)
