"""Renders a chat, and finds the parts of the text that the assistant wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neaptide import DataError
from neaptide.errors import described

if TYPE_CHECKING:
    from collections.abc import Callable

    Render = Callable[[list[dict[str, Any]], bool], str]
    """Renders messages; with True it appends what makes the assistant answer."""

ASSISTANT = "assistant"


def checked(messages: Any, where: str) -> list[dict[str, Any]]:
    """Return the messages; DataError if they are no chat in which the assistant has a turn."""
    wrong = None
    if not isinstance(messages, list) or not messages:
        wrong = f"a chat must be a list of messages (got {messages!r:.40})"
    elif not all(isinstance(one, dict) and isinstance(one.get("role"), str) for one in messages):
        wrong = 'each message must be an object such as {"role": "user", "content": "…"}'
    elif any(_is_empty(one) for one in messages):
        wrong = 'each message must have something beside its role, such as "content"'
    elif not any(one["role"] == ASSISTANT for one in messages):
        wrong = "the chat has no turn of the assistant, so nothing counts for the loss"
    if wrong:
        msg = f"{wrong} in {where} @ data.name"
        raise DataError(msg)
    return [{key: value for key, value in one.items() if value is not None} for one in messages]


def _is_empty(message: dict[str, Any]) -> bool:
    return not any(key != "role" and value is not None for key, value in message.items())


def assistant_spans(
    messages: list[dict[str, Any]], render: Render, where: str
) -> tuple[str, list[tuple[int, int]]]:
    """Return the rendered chat, and where in it the assistant's turns begin and end.

    A turn is what a message adds to the text of the messages before it. Without what the template
    writes to make the assistant answer: at inference that is given, too.

    Raises:
        DataError: the template raises, or writes earlier messages in another way when further ones
            follow, so that a turn has no fixed place.
    """

    def rendered(count: int, *, prompt: bool = False) -> str:
        try:
            return render(messages[:count], prompt)
        except Exception as error:
            msg = f"the chat template cannot write {where}: {described(error)} @ data.name"
            raise DataError(msg) from error

    whole = rendered(len(messages))
    spans = []
    for place, message in enumerate(messages):
        if message["role"] != ASSISTANT:
            continue
        after = rendered(place + 1)
        before = rendered(place) if place else ""
        prompted = rendered(place, prompt=True) if place else _first_prompt(render)
        begin = prompted if after.startswith(prompted) else before
        if not (after.startswith(begin) and whole.startswith(after)):
            msg = (
                f"the chat template writes message {place + 1} of {where} differently when others "
                f"follow, so the assistant's turns have no fixed place; mark them with "
                f"{{% generation %}} in a template of yours @ data.options.chat_template"
            )
            raise DataError(msg)
        spans.append((len(begin), len(after)))
    return whole, spans


def _first_prompt(render: Render) -> str:
    """Return what makes the assistant begin a chat; "" if the template cannot write that."""
    try:
        return render([], True)
    except Exception:  # noqa: BLE001 - templates may expect a message
        return ""


def in_spans(offsets: list[tuple[int, int]], spans: list[tuple[int, int]]) -> list[bool]:
    """Return for each token whether it begins in one of the spans, which are in order."""
    found, place = [], 0
    for begin, _ in offsets:
        while place < len(spans) and begin >= spans[place][1]:
            place += 1
        found.append(place < len(spans) and begin >= spans[place][0])
    return found
