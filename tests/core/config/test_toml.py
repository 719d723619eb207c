from __future__ import annotations

import json
import math
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neaptide.config import dumps, loads
from neaptide.errors import ConfigError

text = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=8)
scalars = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(text, values, max_size=5))
def test_tables_come_back_bit_for_bit(table: dict[str, Any]) -> None:
    written = dumps(table)
    again = loads(written)
    # JSON tells 1 from 1.0 from true, and 0.0 from -0.0.
    assert json.dumps(again, sort_keys=True) == json.dumps(table, sort_keys=True)
    assert dumps(again) == written


@given(st.text() | st.text("[]{}=.,\"'#\n0123456789abeinf_-+:T", max_size=60))
def test_any_text_is_read_or_refused(document: str) -> None:
    try:
        table = loads(document)
    except ConfigError:
        return
    assert loads(dumps(table)) == table


def test_tables_follow_the_values_before_them_in_the_order_of_their_keys() -> None:
    assert dumps({"b": {"y": 1, "x": -0.0}, "a": 2, "c": {}}) == (
        "a = 2\n\n[b]\ny = 1\nx = -0.0\n\n[c]\n"
    )


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ("[a]\nb = nan", "expected a finite number (got nan) @ a.b"),
        ("a = [1, -inf]", "expected a finite number (got -inf) @ a[1]"),
        ("a = 1e400", "expected a finite number (got inf) @ a"),
        (
            "a = 9223372036854775808",
            "expected an integer of at most 64 bits (got one of 64 bits) @ a",
        ),
        (
            f"a = 0x{'f' * 9000}",
            "expected an integer of at most 64 bits (got one of 36000 bits) @ a",
        ),
        (
            "a = 1979-05-27",
            "dates and times must be written as strings (got 1979-05-27) @ a",
        ),
        (r'a = "\u0000"', r'a string must not hold the NUL character (got "\u0000") @ a'),
        (r'"\u0000" = 1', r'a key must not hold the NUL character (got "\u0000") @ "\u0000"'),
        ("a = ", "Invalid value (at end of document)"),
    ],
)
def test_what_is_refused(document: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(document)
    assert caught.value.problems == (line,)


@pytest.mark.parametrize("edge", [2**63 - 1, -(2**63), 5e-324, 1.7976931348623157e308, -0.0])
def test_the_edges_of_numbers_are_kept(edge: float) -> None:
    again = loads(dumps({"a": edge}))["a"]
    assert again == edge
    assert math.copysign(1, again) == math.copysign(1, edge)


DOTS = "a." * 100 + "a"


@pytest.mark.parametrize(
    "document",
    [
        f'a = "{DOTS}"',
        f"a = '{DOTS}'",
        f'a = """\n{DOTS} \\""" {DOTS}"""',
        f"a = '''\n{DOTS} '' {DOTS}'''",
        f"# it's {DOTS}\na = 1",
        f'a = "\\" {DOTS}"',
        "a." * 48 + "a = 1",
        '"a" . ' * 48 + "a = 1",
    ],
)
def test_dots_are_no_depth_but_in_keys(document: str) -> None:
    assert tomllib.loads(document) == loads(document)


@pytest.mark.parametrize(
    "document",
    [
        f"{DOTS} = 1",
        f"[{DOTS}]",
        f"a = {{{DOTS} = 1}}",
        "'a\"' . " * 100 + "a = 1",
        '"\\"" .' * 100 + "a = 1",
    ],
)
def test_keys_of_many_parts_are_too_deep(document: str) -> None:
    with pytest.raises(ConfigError, match="at most 50 deep"):
        loads(document)


def test_long_texts_are_shortened_in_messages() -> None:
    with pytest.raises(ConfigError) as caught:
        loads(f'a = "{"x" * 1000}\\u0000"')
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [float("nan"), 2**63, None, "\ud800", object()])
def test_what_could_not_be_read_again_is_not_written(value: object) -> None:
    with pytest.raises(ConfigError, match=r" @ a\.b$"):
        dumps({"a": {"b": value}})


def test_a_table_that_contains_itself_is_not_written() -> None:
    table: dict[str, Any] = {}
    table["itself"] = table
    with pytest.raises(ConfigError, match="at most 50 deep"):
        dumps(table)
