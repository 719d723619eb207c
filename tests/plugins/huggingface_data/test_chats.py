"""Which tokens of a chat count for the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from chats_and_texts import FORGETFUL, MARKED, PLAIN, chats, save_tokenizer

from neaptide import DataError
from neaptide_plugins.huggingface_data.chats import assistant_spans, in_spans
from neaptide_plugins.huggingface_data.documents import Raw
from neaptide_plugins.huggingface_data.tokenizing import Fields, encode

if TYPE_CHECKING:
    from pathlib import Path

FIELDS = Fields("text", "messages")
CHAT = [
    {"role": "system", "content": "the moon"},
    {"role": "user", "content": "rises"},
    {"role": "assistant", "content": "sun ünd 🌊 sand"},
    {"role": "user", "content": "the salt"},
    {"role": "assistant", "content": "wind"},
]


def counted(tokenizer: Any, *conversations: Any) -> list[tuple[str, str]]:
    """Return for each chat its text, and the text of the tokens that count."""
    raws = [Raw(f"row {row}", {"messages": one}) for row, one in enumerate(conversations, 1)]
    found = encode(raws, tokenizer, FIELDS)
    told, at = [], 0
    for size in found.sizes:
        ids, marks = found.tokens[at : at + size], found.counted[at : at + size]
        told.append((tokenizer.decode(ids), tokenizer.decode(ids[marks])))
        at += size
    return told


def by_hand(messages: Any) -> tuple[str, str]:
    whole = "".join(f"<|{one['role']}|>{one['content']}<|end|>" for one in messages)
    answers = [one["content"] for one in messages if one["role"] == "assistant"]
    return whole, "".join(f"{answer}<|end|>" for answer in answers)


@pytest.mark.parametrize("template", [PLAIN, MARKED])
def test_the_assistants_turns_count_and_nothing_else(template: str, tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path, template)
    some = [CHAT, *chats(20)]
    assert [by_hand(one) for one in some] == counted(tokenizer, *some)


LIKE_LLAMA = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\n\n' + message['content'] | trim + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n\n' }}{% endif %}"
)
LIKE_QWEN = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|system|>\nthe tide<|end|>\n' }}{% endif %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


@pytest.mark.parametrize(("template", "end"), [(LIKE_LLAMA, "<|end|>"), (LIKE_QWEN, "<|end|>\n")])
@pytest.mark.parametrize("first", [0, 1])
def test_heads_of_turns_do_not_count(template: str, end: str, first: int, tmp_path: Path) -> None:
    ((_, answers),) = counted(save_tokenizer(tmp_path, template), CHAT[first:])
    assert f"sun ünd 🌊 sand{end}wind{end}" == answers


def test_a_template_without_a_prompt_counts_the_head_of_the_turn(tmp_path: Path) -> None:
    template = PLAIN.partition("{% if add")[0]
    ((_, answers),) = counted(save_tokenizer(tmp_path, template), CHAT)
    assert "<|assistant|>sun ünd 🌊 sand<|end|><|assistant|>wind<|end|>" == answers


def test_a_chat_may_begin_with_the_assistant(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path)
    assert [by_hand(CHAT[2:])] == counted(tokenizer, CHAT[2:])
    tokenizer.chat_template = "{{ messages[0]['role'][:0] }}" + PLAIN  # it expects a message
    ((_, answers),) = counted(tokenizer, CHAT[2:])
    assert "<|assistant|>sun ünd 🌊 sand<|end|>wind<|end|>" == answers


def test_a_template_that_rewrites_earlier_turns_is_refused(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path, FORGETFUL)
    with pytest.raises(DataError, match=r"writes message 3 of row 1 differently .*\n?") as caught:
        counted(tokenizer, CHAT)
    assert "\n" not in str(caught.value)
    assert "{% generation %}" in str(caught.value)


def test_what_a_template_refuses_is_told_with_its_place(tmp_path: Path) -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(DataError, match=r"cannot write row 1: TemplateError: roles must alternate"):
        counted(save_tokenizer(tmp_path, template), CHAT)


def test_spans_are_those_of_the_text() -> None:
    def render(messages: list[dict[str, Any]], prompt: bool) -> str:  # noqa: FBT001 - see `Render`
        return "".join(f"{one['role'][0]}:{one['content']};" for one in messages) + "a:" * prompt

    text, spans = assistant_spans(CHAT, render, "here")
    assert ["sun ünd 🌊 sand;", "wind;"] == [text[begin:end] for begin, end in spans]


def test_a_token_counts_where_it_begins() -> None:
    offsets = [(0, 2), (2, 5), (5, 6), (6, 9), (9, 9)]
    assert [False, False, True, False, False] == in_spans(offsets, [(4, 6), (9, 9)])
    assert [False] * 5 == in_spans(offsets, [])
