"""TOML, YAML and JSON: one table, three notations, the same bits."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from neaptide.config import Format, all_formats, by_name, by_suffix, structure, unstructure
from neaptide.errors import ConfigError

from . import test_laws

AWKWARD = [
    "yes",
    "no",
    "on",
    "off",
    "y",
    "N",
    "null",
    "Null",
    "~",
    "true",
    "True",
    ".inf",
    ".nan",
    "1e3",
    "2e-5",
    "0o17",
    "0x1f",
    "1_000",
    "12:30:45",
    "007",
    "-1",
    "+1",
    "2001-12-14",
    "<<",
    "=",
    "-",
    "---",
    "...",
    "?",
    "!",
    "!!int",
    "&a",
    "*a",
    "#",
    "a#b",
    "{}",
    "[]",
    ",",
    ":",
    "a:b",
    "key:",
    "'a'",
    '"a"',
    "%",
    "@",
    "`",
    "|",
    ">",
    "\\",
    "\\n",
]
text = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12)
strings = (
    text
    | st.sampled_from([*AWKWARD, "", " ", "a b ", "a\nb", "\t", "\x85", "\u2028", "\ufeff", "\x7f"])
    | st.lists(st.sampled_from(AWKWARD), max_size=3).map(" ".join)
)
floats = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [-0.0, 5e-324, 1e22, 1e-5, 2e-5, 1.7976931348623157e308]
)
scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | floats | strings
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(strings, inner, max_size=4),
    max_leaves=20,
)
documents = st.dictionaries(strings, values, max_size=5)

each = pytest.mark.parametrize("notation", all_formats().values(), ids=all_formats())


def bits(table: Any) -> str:
    # JSON tells 1 from 1.0 from true, and 0.0 from -0.0.
    return json.dumps(table, sort_keys=True)


def refusal(notation: str, document: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        by_name(notation).loads(document)
    return caught.value.problems


@each
@example({"a" * 2000: {"b" * 2000: [{"c" * 2000: 1}]}})
@given(documents)
def test_tables_come_back_bit_for_bit(notation: Format, table: dict[str, Any]) -> None:
    written = notation.dumps(table)
    again = notation.loads(written)
    assert bits(table) == bits(again)
    assert written == notation.dumps(again)


@given(documents)
def test_a_table_goes_through_all_formats_and_back(table: dict[str, Any]) -> None:
    again = table
    for notation in all_formats().values():
        again = notation.loads(notation.dumps(again))
    assert bits(table) == bits(again)


@given(test_laws.configs)
def test_a_configuration_goes_through_all_formats_and_back(config: Any) -> None:
    for notation in all_formats().values():
        table = notation.loads(notation.dumps(unstructure(config)))
        assert config == structure(table, test_laws.SPECS)
        assert bits(unstructure(config)) == bits(table)


@given(documents)
def test_what_is_written_as_yaml_means_the_same_to_readers_of_yaml_1_1(
    table: dict[str, Any],
) -> None:
    assert bits(table) == bits(yaml.safe_load(by_name("yaml").dumps(table)))


def test_words_that_readers_of_yaml_1_1_may_take_for_booleans_are_quoted() -> None:
    words = ["y", "Y", "n", "N", "yes", "No", "on", "OFF", "true", "null"]
    quoted = ", ".join(f'"{word}"' for word in words)
    assert f"a: [{quoted}]\n" == by_name("yaml").dumps({"a": words})


def test_yaml_is_written_in_blocks() -> None:
    table = {"seed": 1, "run": {}, "a": [1, 2e-5, "yes"], "b": [{"c": {"d": "x y"}}, []], "e": []}
    assert by_name("yaml").dumps(table) == (
        'seed: 1\nrun: {}\na: [1, 2.0e-05, "yes"]\nb:\n  - c:\n      d: "x y"\n  - []\ne: []\n'
    )


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("2e-5", 2e-5),
        ("1E3", 1e3),
        (".5", 0.5),
        ("5.", 5.0),
        ("-0.0", -0.0),
        ("-0", 0),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("2001-12-14", "2001-12-14"),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("off", "off"),
        ("True", True),
        ("tRUE", "tRUE"),
        ('"1"', "1"),
        ("'null'", "null"),
        ("=", "="),
        ("|\n  a\n  b", "a\nb\n"),
        ("٣", "٣"),
        ("[1, {b: 2}]", [1, {"b": 2}]),
    ],
)
def test_yaml_scalars_follow_the_core_schema(scalar: str, value: object) -> None:
    again = by_name("yaml").loads(f"a: {scalar}\n")["a"]
    assert bits(value) == bits(again)


@pytest.mark.parametrize("document", ["", "\n", "# only a comment\n", "---\n", "--- \n...\n"])
def test_an_empty_yaml_document_is_an_empty_table(document: str) -> None:
    assert {} == by_name("yaml").loads(document)


BOMB = "a: &a [x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(12)
)
ANCHOR = "anchors and aliases (&name, *name) are not read; write the value out"
TAG = "tags such as !!int are not read; write the plain value"


@pytest.mark.parametrize(
    ("notation", "document", "line"),
    [
        ("yaml", BOMB, f"{ANCHOR} (at line 1, column 4)"),
        ("yaml", "a: *b\n", f"{ANCHOR} (at line 1, column 4)"),
        ("yaml", "a: &b {c: 1}\n", f"{ANCHOR} (at line 1, column 4)"),
        ("yaml", "a: !!python/object:os.system {}\n", f"{TAG} (at line 1, column 4)"),
        ("yaml", "!!map\na: 1\n", f"{TAG} (at line 1, column 1)"),
        ("yaml", "a: ! x\n", f"{TAG} (at line 1, column 4)"),
        (
            "yaml",
            "a: 1\n<<: {b: 1}\n",
            'merge keys are not read; write the keys out (or quote "<<") (at line 2, column 1)',
        ),
        ("yaml", "a:\n  b: 1\n  b: 2\n", 'the key "b" is written twice (at line 3, column 3)'),
        (
            "yaml",
            "a: 1\n1: 2\n",
            "expected a string as the key (got 1, an integer); quote it (at line 2, column 1)",
        ),
        (
            "yaml",
            "? [a]\n: 2\n",
            "expected a string as the key (got an array); quote it (at line 1, column 3)",
        ),
        (
            "yaml",
            "a: 1\n---\nb: 1\n",
            "a second document begins; one file holds one table (at line 2, column 1)",
        ),
        ("yaml", "- 1\n", "expected a table (got an array)"),
        ("yaml", "a\n", 'expected a table (got "a", a string)'),
        ("yaml", "~\n", "expected a table (got None)"),
        ("yaml", "a: b: c\n", "mapping values are not allowed here (at line 1, column 5)"),
        (
            "yaml",
            "a:\n\tb: 1\n",
            "found character '\\t' that cannot start any token (at line 2, column 1)",
        ),
        ("yaml", "a: 1\nb: \0\n", "the character 0x0000 is not allowed (at line 2, column 4)"),
        ("yaml", "a: .nan\n", "expected a finite number (got nan) @ a"),
        ("yaml", "a: [1, -.INF]\n", "expected a finite number (got -inf) @ a[1]"),
        ("yaml", "a: 1e400\n", "expected a finite number (got inf) @ a"),
        (
            "yaml",
            f"a: {'1' * 5000}\n",
            "an integer has too many digits; at most 64 bits fit (at line 1, column 4)",
        ),
        (
            "yaml",
            f"a: 0x{'f' * 9000}\n",
            "expected an integer of at most 64 bits (got one of 36000 bits) @ a",
        ),
        (
            "yaml",
            "a: " + "[" * 60 + "]" * 60,
            "tables and arrays may nest at most 50 deep (at line 1, column 53)",
        ),
        (
            "yaml",
            'a: "\\ud800"\n',
            'a string must be valid Unicode (got "\\ud800") @ a',
        ),
        ("yaml", 'a: "\\U99999999"\n', None),
        ("yaml", f"%YAML {'9' * 5000}.1\n---\na: 1\n", None),
        (
            "yaml",
            "a: ~\n",
            "expected a string, a number, a boolean, an array or a table (got None) @ a",
        ),
        (
            "json",
            '{"a": {"b": 1,\n "b": 2}}',
            'the key "b" is written twice (at line 2, column 2)',
        ),
        (
            "json",
            '{"a": [{"{": "}", "b": 1, "{": 2}]}',
            'the key "{" is written twice (at line 1, column 27)',
        ),
        ("toml", "[a]\nb = 1\n[a]\n", "the table a is written twice (at line 3, column 3)"),
        ("toml", "[a]\nb = 1\n[a.b]\n", "the key a.b is written twice (at line 3, column 5)"),
        ("toml", "a = 1\na = [\n2]\n", "the key a is written twice (at line 3, column 3)"),
        ("toml", "a = {b=1, b=2}", 'the key "b" is written twice (at line 1, column 14)'),
        ("toml", "a = {b=1}\na.c = 2", "the table a is written twice (at end of document)"),
        ("json", "[1]", "expected a table (got an array)"),
        ("json", "", "Expecting value (at line 1, column 1)"),
        ("json", '{"a": NaN}', "expected a finite number (got nan) @ a"),
        ("json", '{"a": -Infinity}', "expected a finite number (got -inf) @ a"),
        (
            "json",
            f'{{"a": {"1" * 5000}}}',
            "an integer has too many digits; at most 64 bits fit",
        ),
        ("json", '{"a": ' + "[" * 99_999, "tables and arrays may nest at most 50 deep"),
        (
            "json",
            '{"a": ' + "[" * 60 + "]" * 60 + "}",
            "tables and arrays may nest at most 50 deep",
        ),
        ("json", '{"a": "\\ud800"}', 'a string must be valid Unicode (got "\\ud800") @ a'),
        (
            "json",
            '{"\\udc00": 1}',
            'a key must be valid Unicode (got "\\udc00") @ "\\udc00"',
        ),
    ],
)
def test_what_is_refused(notation: str, document: str, line: str | None) -> None:
    problems = refusal(notation, document)
    assert 1 == len(problems)
    assert 1 == len(problems[0].splitlines())
    assert line in (None, problems[0])


def test_every_key_that_json_repeats_is_named() -> None:
    document = '{"a": 1, "a": 2, "a": 3, "b": {"c": 1, "c": 1}}'
    expected = (
        'the key "a" is written twice (at line 1, column 10)',
        'the key "c" is written twice (at line 1, column 40)',
    )
    assert expected == refusal("json", document)


@each
def test_a_formats_name_and_suffixes_find_it(notation: Format) -> None:
    from pathlib import Path

    assert notation == by_name(notation.name)
    for suffix in notation.suffixes:
        assert notation == by_suffix(Path(f"a.b{suffix}"))
        assert notation == by_suffix(Path(f"a.b{suffix.upper()}"))


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown format 'yml' \(did you mean 'yaml'\?\)"):
        by_name("yml")


@pytest.mark.parametrize("edge", [2**63 - 1, -(2**63), 5e-324, 1.7976931348623157e308, -0.0])
@each
def test_the_edges_of_numbers_are_kept(notation: Format, edge: float) -> None:
    again = notation.loads(notation.dumps({"a": edge}))["a"]
    assert (edge, math.copysign(1, edge)) == (again, math.copysign(1, again))


@pytest.mark.parametrize("value", [float("nan"), 2**63, None, "\ud800", object()])
@each
def test_what_could_not_be_read_again_is_not_written(notation: Format, value: object) -> None:
    with pytest.raises(ConfigError, match=r" @ a\.b$"):
        notation.dumps({"a": {"b": value}})


def test_an_alias_bomb_takes_no_memory() -> None:
    tracemalloc.start()
    refusal("yaml", BOMB)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20
