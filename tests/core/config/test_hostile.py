"""Whatever bytes a file holds, reading it ends in a table or in a ConfigError of single lines."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from neaptide.config import all_formats, load
from neaptide.config.formats import MAX_FILE_BYTES
from neaptide.errors import ConfigError

from . import test_laws

if TYPE_CHECKING:
    from pathlib import Path

SUFFIXES = [suffix for notation in all_formats().values() for suffix in notation.suffixes]
hostile = settings(
    max_examples=400,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

PIECES = [
    *("a", "b: ", "train", "steps", "plugins", "rich", ": ", ":", ",", "\n", "\n  ", "\n\t", " "),
    *("{", "}", "[", "]", "- ", "? ", "| ", "> ", "|2-\n", "&a ", "*a", "<<: ", "!!int ", "! "),
    *("!!python/object/apply:os.system ['true']", "%YAML 1.1\n", "%TAG ! tag:x:\n", "---\n"),
    *("...\n", "#", "'", '"', "\\", "\\ud800", "\\U00110000", "\\x00", "\\N", "\0", "\ufeff"),
    *("\x85", "\u2028", "\x7f", "\ue000", "~", "null", "yes", "1e999", "-.inf", ".nan", "NaN"),
    *("9" * 30, "0x" + "f" * 40, "0o777", "1_0", "1:2:3", "2001-01-01", "true", "= ", "=", "'''"),
    *('"""', "[[", "]]", "[a]\n", "[[a]]\n", "a.b.c = 1\n", "/*", "//", "é", "😀"),
]
texts = st.lists(st.sampled_from(PIECES), max_size=25).map("".join)
json_texts = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(test_laws.known, inner, max_size=3),
    max_leaves=8,
).map(json.dumps)
contents = (
    st.binary(max_size=60)
    | texts.map(lambda text: text.encode("utf-8", "surrogatepass"))
    | json_texts.map(str.encode)
)


def read(path: Path) -> list[str]:
    """Return the lines in which a file is refused."""
    try:
        load([path], specs=test_laws.SPECS)
    except ConfigError as error:
        return list(error.problems)
    return []


@hostile
@example(".yaml", b"a: !!python/object/apply:os.system ['true']")
@example(".yaml", b'a: "\\ud800"')
@example(".yaml", b'a: "\\U00110000"')
@example(".yaml", b"%YAML " + b"9" * 5000 + b".1\n---\na: 1")
@example(".yaml", b"\xef\xbb\xbf\xef\xbb\xbfa: 1")
@example(".yaml", b"? ? ? ? ? ? ? a\n")
@example(".json", b'{"a": "\\udc00", "\\ud800": 1}')
@example(".json", b'\xff\xfe{\x00"\x00')
@given(st.sampled_from(SUFFIXES), contents)
def test_any_bytes_are_read_or_refused_in_lines(
    tmp_path: Path, suffix: str, content: bytes
) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(content)
    problems = read(path)
    assert [] == [problem for problem in problems if len(problem.splitlines()) != 1]
    assert [] == [problem for problem in problems if len(problem) > 2000]


@settings(max_examples=400)
@given(st.sampled_from(list(all_formats().values())), st.text(max_size=40) | texts)
def test_any_text_that_is_read_can_be_written_in_every_format(notation: Any, text: str) -> None:
    try:
        table = notation.loads(text)
    except ConfigError as error:
        test_laws.check_lines(error)
        return
    for other in all_formats().values():
        assert table == other.loads(other.dumps(table))


DEEP = 200_000
LARGE = {
    "nested flow": (".yaml", "a: " + "[" * DEEP),
    "nested tables": (".yaml", "{a: " * (DEEP // 4)),
    "nested blocks": (".yaml", "".join(f"{' ' * depth}a:\n" for depth in range(600))),
    "nested dashes": (".yaml", "a:\n " + "- " * (DEEP // 2)),
    "nested questions": (".yaml", "? " * (DEEP // 2)),
    "aliases": (".yaml", "a: &a [" + "x," * 1000 + "]\nb: [" + "*a," * 50_000 + "]"),
    "tags": (".yaml", "a: " + "!" * 100_000),
    "a long scalar": (".yaml", "a: " + "x" * 500_000),
    "an open string": (".yaml", 'a: "' + "\\n" * 100_000),
    "a long number": (".yaml", "a: " + "9" * 500_000),
    "nested arrays": (".json", "[" * 500_000),
    "nested objects": (".json", '{"a":' * 100_000),
    "one key again and again": (".json", "{" + '"a": 1, ' * 50_000 + '"a": 1}'),
    "a number without end": (".json", '{"a": ' + "9" * 500_000 + "}"),
    "dotted keys": (".toml", "a." * 100_000 + "b = 1"),
    "dotted headers": (".toml", "[" + "a." * 100_000 + "a]\n" + "b = 1\n" * 10_000),
    "quoted keys": (".toml", "{" + '"a" . ' * 50_000 + "b = 1}"),
    "quotes without end": (".toml", 'a = """' + '\\"""' * 100_000),
    "apostrophes without end": (".toml", "a = '''" + "'' " * 100_000),
    "arrays in arrays": (".toml", "a = " + "[" * 500_000),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_files_are_refused_in_little_memory(tmp_path: Path, name: str) -> None:
    suffix, content = LARGE[name]
    path = tmp_path / f"x{suffix}"
    path.write_text(content, encoding="utf-8")
    tracemalloc.start()
    problems = read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 1 == len(problems)
    assert len(problems[0]) < 2000
    assert peak < 100 * 2**20


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_more_than_the_limit_is_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: it takes no room on the disk
    tracemalloc.start()
    problems = read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [f"larger than 1 MiB, the most for a configuration @ {path}"] == problems
    assert peak < 4 * MAX_FILE_BYTES
