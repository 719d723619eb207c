"""Strict JSON: one text for a value, one value for a text."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neaptide.checkpoint import canonical
from neaptide.errors import CheckpointError

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON)
def test_round_trip(value: object) -> None:
    text = canonical.dumps(value)

    assert value == canonical.loads(text, "here")
    assert text == canonical.dumps(canonical.loads(text, "here"))


@given(st.dictionaries(st.text(), st.integers()))
def test_the_order_of_keys_is_not_in_the_text(value: dict[str, int]) -> None:
    assert canonical.dumps(value) == canonical.dumps(dict(reversed(value.items())))


def test_negative_zero_keeps_its_sign() -> None:
    assert -1.0 == math.copysign(1, canonical.loads(canonical.dumps(-0.0), "here"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"a": 1, "a": 2}', "a key occurs twice"),
        (b'[{"b": {"a": 1, "a": 1}}]', "a key occurs twice"),
        (b"NaN", "NaN is not a JSON number"),
        (b"[-Infinity]", "-Infinity is not a JSON number"),
        (b"1e400", "1e400 overflows"),
        (b"", "Expecting value"),
        (b"{} {}", "Extra data"),
        (b'"\xff"', "invalid start byte"),
        ("\ufeff{}".encode(), "Expecting value"),
        ('"é"'.encode("utf-16"), "invalid start byte"),
        (b"1" * 5000, "Exceeds the limit"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[" + b"0," * 1_000_000 + b"0]", "1000001 JSON values, at most 1000000"),
    ],
)
def test_refused(text: bytes, why: str) -> None:
    with pytest.raises(CheckpointError, match=why) as caught:
        canonical.loads(text, "run/state.json")

    assert str(caught.value).startswith("run/state.json: ")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_json_is_not_written(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical.dumps([number])


def test_the_text_is_ascii_whatever_the_strings() -> None:
    text = canonical.dumps(["é", "\ud800", "\u2028"])

    assert text.isascii()
    assert ["é", "\ud800", "\u2028"] == json.loads(text)
