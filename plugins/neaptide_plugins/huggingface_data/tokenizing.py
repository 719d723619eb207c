"""Loads a tokenizer, and turns documents into tokens that count for the loss or do not."""

from __future__ import annotations

import hashlib
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import tokenizers
import transformers
from transformers import AutoTokenizer

from neaptide import ConfigError, DataError
from neaptide.errors import described

from .chats import assistant_spans, checked, in_spans
from .documents import record_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from .documents import Raw

_MARKS = re.compile(r"\{%-?\s*generation\b").search
"""Finds where a template marks the assistant's turns itself."""


@attrs.frozen
class Fields:
    """Names of the fields of a document."""

    text: str
    messages: str


@attrs.frozen(eq=False)
class Encoded:
    """Tokens of some documents, one after the other."""

    tokens: NDArray[np.int32]
    counted: NDArray[np.bool_]
    sizes: list[int]
    chats: int
    """How many of the documents are chats."""


def load_tokenizer(name: str, template: str | None, *, download: bool) -> Any:
    """Return the tokenizer; ConfigError in one line if it is not there or cannot be used.

    Args:
        name: a directory or an id.
        template: file with a chat template, or None for the tokenizer's own.
        download: whether a tokenizer that is not on this machine is downloaded.
    """
    folder = Path(name).expanduser()
    known = str(folder) if folder.is_dir() else name
    try:
        tokenizer = AutoTokenizer.from_pretrained(known, local_files_only=not download)
    except Exception as error:  # tokenizers raises plain ones
        if folder.is_dir():
            msg = f"{name!r} has no tokenizer that can be loaded: {described(error)}"
        elif download:
            msg = f"the tokenizer {name!r} cannot be downloaded: {described(error)}"
        else:
            msg = (
                f"{name!r} is no directory, and there is no tokenizer of this id on this "
                f"machine; to download it, set data.options.download = true"
            )
        msg = f"{msg} @ data.options.tokenizer"
        raise ConfigError(msg) from error
    if not tokenizer.is_fast:
        msg = (
            f"{name!r} is a {type(tokenizer).__name__}, which cannot tell where in the text a "
            f"token lies; use one with tokenizer.json @ data.options.tokenizer"
        )
        raise ConfigError(msg)
    if template is not None:
        try:
            tokenizer.chat_template = Path(template).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            msg = f"cannot read {template!r}: {described(error)} @ data.options.chat_template"
            raise ConfigError(msg) from error
    return tokenizer


def digest_of(tokenizer: Any) -> str:
    """Return a hash of all that makes tokens of a text, its chat template included."""
    releases = f"{transformers.__version__} {tokenizers.__version__}"
    found = hashlib.sha256(releases.encode())
    found.update(type(tokenizer).__name__.encode())
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
            found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def largest_id(tokenizer: Any) -> int:
    """Return the largest id that the tokenizer gives, without that of the padding."""
    ids: dict[str, int] = tokenizer.get_vocab()
    return max(id_ for token, id_ in ids.items() if token != tokenizer.pad_token)


def filler_of(tokenizer: Any) -> int:
    """Return a token that every model has, for what is not used of a sample."""
    end: int | None = tokenizer.eos_token_id
    return 0 if end is None else end


def encode(raws: Sequence[Raw], tokenizer: Any, fields: Fields) -> Encoded:
    """Return the tokens of some documents.

    All tokens of a text count for the loss, and the end-of-text token is added if the tokenizer has
    one. Of a chat the assistant's turns count, and the template alone decides on special tokens.
    """
    texts: dict[int, str] = {}
    chats: dict[int, list[dict[str, Any]]] = {}
    for place, raw in enumerate(raws):
        if isinstance(raw.content, str) and not raw.is_json:
            texts[place] = raw.content
            continue
        record = record_of(raw)
        if record.get(fields.messages) is not None:
            chats[place] = checked(record[fields.messages], raw.where)
        elif isinstance(record.get(fields.text), str):
            texts[place] = record[fields.text]
        else:
            msg = (
                f"{raw.where} has neither the field {fields.messages!r} nor a text in "
                f"{fields.text!r} (it has {', '.join(map(repr, record)) or 'none'}); name it "
                f"@ data.options.text"
            )
            raise DataError(msg)
    done = _texts(texts, tokenizer) | _chats(chats, tokenizer, lambda place: raws[place].where)
    rows = [done[place] for place in range(len(raws))]
    return Encoded(
        np.concatenate([np.asarray(ids, np.int32) for ids, _ in rows]),
        np.concatenate([np.asarray(counted, np.bool_) for _, counted in rows]),
        [len(ids) for ids, _ in rows],
        len(chats),
    )


_Rows = dict[int, tuple[list[int], list[bool]]]


def _texts(texts: dict[int, str], tokenizer: Any) -> _Rows:
    if not texts:
        return {}
    end = tokenizer.eos_token_id
    found = {}
    rows = tokenizer([*texts.values()], verbose=False)["input_ids"]
    for place, row in zip(texts, rows, strict=True):
        ids = [*row, end] if texts[place] and end is not None and row[-1:] != [end] else row
        ids = ids if texts[place] else []
        found[place] = ids, [True] * len(ids)
    return found


def _chats(
    chats: dict[int, list[dict[str, Any]]], tokenizer: Any, where: Callable[[int], str]
) -> _Rows:
    if not chats:
        return {}
    template = tokenizer.chat_template
    if not template:
        msg = (
            f"{where(next(iter(chats)))} is a chat, and the tokenizer has no chat template; name a "
            f"file with one @ data.options.chat_template"
        )
        raise DataError(msg)
    if isinstance(template, str) and _MARKS(template):
        return {place: _marked(one, tokenizer, where(place)) for place, one in chats.items()}

    def render(messages: list[dict[str, Any]], prompt: bool) -> str:  # noqa: FBT001 - see `Render`
        # A list of one chat, because an empty chat is taken for an empty list of chats.
        texts: list[str] = tokenizer.apply_chat_template(
            [messages], tokenize=False, add_generation_prompt=prompt
        )
        return texts[0]

    rendered = [assistant_spans(one, render, where(place)) for place, one in chats.items()]
    rows = tokenizer(
        [text for text, _ in rendered],
        add_special_tokens=False,
        return_offsets_mapping=True,
        verbose=False,
    )
    found = {}
    for place, ids, offsets, (_, spans) in zip(
        chats, rows["input_ids"], rows["offset_mapping"], rendered, strict=True
    ):
        found[place] = ids, in_spans(offsets, spans)
    return found


def _marked(
    messages: list[dict[str, Any]], tokenizer: Any, where: str
) -> tuple[list[int], list[bool]]:
    """Return the tokens of a chat whose template marks the assistant's turns itself."""
    try:
        row = tokenizer.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True
        )
    except Exception as error:
        msg = f"the chat template cannot write {where}: {described(error)} @ data.name"
        raise DataError(msg) from error
    return row["input_ids"], [bool(one) for one in row["assistant_masks"]]
