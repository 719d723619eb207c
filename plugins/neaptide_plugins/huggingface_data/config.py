"""The plugin's manifest, and the options of its data."""

from __future__ import annotations

from typing import Literal

import attrs
from attrs.validators import ge, min_len

from neaptide.plugin import PluginSpec

TooLong = Literal["cut", "drop", "split"]


@attrs.frozen(kw_only=True)
class HuggingFaceDataOptions:
    """Options of `text:…`, `jsonl:…`, `parquet:…` and `hf:…`."""

    tokenizer: str = attrs.field(
        validator=min_len(1),
        metadata={"help": "Directory or id of the tokenizer, usually that of the model."},
    )
    length: int = attrs.field(
        default=1024, validator=ge(2), metadata={"help": "Largest number of tokens of a sample."}
    )
    pack: bool = attrs.field(
        default=True,
        metadata={"help": "Put several documents into a sample. They do not see each other."},
    )
    too_long: TooLong | None = attrs.field(
        default=None,
        metadata={
            "help": "A document of more tokens than `length`: `cut` its end off, `drop` it, or "
            "`split` it into several. Unset: `cut` if there are chats, else `split`."
        },
    )
    validation: str | float | None = attrs.field(
        default=None,
        metadata={
            "help": "Data for validation: a pattern of files (with `hf:` the name of a split), or "
            "a share of the documents between 0 and 1. Unset: none."
        },
    )
    shuffle: bool = attrs.field(
        default=True, metadata={"help": "Another order of the samples in each epoch."}
    )
    text: str = attrs.field(
        default="text", validator=min_len(1), metadata={"help": "The field with the text."}
    )
    messages: str = attrs.field(
        default="messages", validator=min_len(1), metadata={"help": "The field with the chat."}
    )
    chat_template: str | None = attrs.field(
        default=None,
        metadata={"help": "File with a chat template. Unset: the tokenizer's."},
    )
    workers: int = attrs.field(
        default=1, validator=ge(1), metadata={"help": "Processes that tokenize."}
    )
    cache: str | None = attrs.field(
        default=None,
        metadata={"help": "Directory for tokenized data. Unset: in the user's cache directory."},
    )
    download: bool = attrs.field(
        default=False,
        metadata={"help": "Download a tokenizer or data that are not on this machine."},
    )

    @validation.validator
    def _is_share(
        self,
        attribute: attrs.Attribute[str | float | None],
        value: str | float | None,
    ) -> None:
        if isinstance(value, float) and not 0.0 < value < 1.0:
            msg = f"{attribute.name!r} must be between 0 and 1 (got {value})"
            raise ValueError(msg)
        if value == "":
            msg = f"{attribute.name!r} must name files or be a share (got {value!r})"
            raise ValueError(msg)


SPEC = PluginSpec(
    name="huggingface-data",
    load="neaptide_plugins.huggingface_data.plugin:HuggingFaceData",
    schemes={"data:text", "data:jsonl", "data:parquet", "data:hf"},
    summary="Texts and chats from files or data sets, tokenized and packed.",
    options={"data:*": HuggingFaceDataOptions},
)
