"""The plugin's manifest, and the options of `hf:` models."""

from __future__ import annotations

from typing import Any, Literal

import attrs

from neaptide.plugin import PluginSpec

Task = Literal[
    "causal-lm", "masked-lm", "seq2seq", "sequence-classification", "image-classification"
]
Dtype = Literal["float32", "bfloat16", "float16", "saved"]


@attrs.frozen(kw_only=True)
class HuggingFaceOptions:
    """Options of `hf:…`."""

    task: Task | None = attrs.field(
        default=None,
        metadata={
            "help": "What the model is for. Unset: the architecture that its `config.json` names."
        },
    )
    dtype: Dtype = attrs.field(
        default="float32",
        metadata={"help": "Dtype of the weights; `saved` is that of the files."},
    )
    attention: str | None = attrs.field(
        default=None,
        metadata={
            "help": "The attention of transformers, such as `sdpa` or `eager`. Unset: its choice."
        },
    )
    from_config: bool = attrs.field(
        default=False,
        metadata={"help": "Random weights: only `config.json` is read, not the weights."},
    )
    config: dict[str, Any] = attrs.field(
        factory=dict,
        metadata={"help": "Replaces values of `config.json`, such as `{ num_labels = 3 }`."},
    )
    download: bool = attrs.field(
        default=False,
        metadata={"help": "Download a model that is not on this machine. Else nothing is."},
    )
    trust_remote_code: bool = attrs.field(
        default=False, metadata={"help": "Run Python code that comes with the model."}
    )


SPEC = PluginSpec(
    name="huggingface-models",
    load="neaptide_plugins.huggingface_models.plugin:HuggingFaceModels",
    schemes={"model:hf"},
    summary="Models of Hugging Face's transformers, by directory or id.",
    options={"model:*": HuggingFaceOptions},
)
