from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from neaptide.config import by_suffix
from neaptide.config.layers import Layer, from_env, from_files, from_preset, from_sets, merge
from neaptide.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def line(call: Any, *arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*arguments)
    (problem,) = caught.value.problems
    return problem


def values(layers: list[Layer]) -> list[dict[str, Any]]:
    return [layer.values for layer in layers]


def test_later_layers_win_tables_merge_and_arrays_are_replaced() -> None:
    layers = [
        Layer("a", {"x": {"y": 1, "z": [1, 2]}, "w": {"deep": {"er": 1}}}),
        Layer("b", {"x": {"z": [3]}, "w": {"deep": {"est": 2}}}),
        Layer("c", {"x": {"y": 3}}),
    ]
    merged, origins = merge(layers)
    assert merged == {"x": {"y": 3, "z": [3]}, "w": {"deep": {"er": 1, "est": 2}}}
    assert origins == {"x.y": "c", "x.z": "b", "w.deep.er": "a", "w.deep.est": "b"}
    assert layers[0].values == {"x": {"y": 1, "z": [1, 2]}, "w": {"deep": {"er": 1}}}


def test_a_value_may_replace_a_table_and_a_table_a_value() -> None:
    merged, origins = merge(
        [
            Layer("a", {"x": {"y": 1}, "v": 1}),
            Layer("b", {"x": 2, "v": {"w": 3}}),
            Layer("c", {"x": {"z": 4}}),
        ]
    )
    assert merged == {"x": {"z": 4}, "v": {"w": 3}}
    assert origins == {"x.z": "c", "v.w": "b"}


def test_an_empty_table_has_an_origin_until_something_is_in_it() -> None:
    layers = [Layer("a", {"plugins": {"ema": {}}}), Layer("b", {"plugins": {"ema": {}}})]
    assert merge(layers) == ({"plugins": {"ema": {}}}, {"plugins.ema": "b"})
    layers.append(Layer("c", {"plugins": {"ema": {"decay": 1}}}))
    assert merge(layers)[1] == {"plugins.ema.decay": "c"}


def test_odd_keys_are_quoted_in_origins() -> None:
    table = {"a b": {"": {'q"': 1}}, "é": 2, "x\n": 3}
    assert merge([Layer("f", table)])[1] == {
        r'"a b".""."q\""': "f",
        '"é"': "f",
        r'"x\n"': "f",
    }


def test_files_are_layers_in_order(tmp_path: Path) -> None:
    first, second = tmp_path / "base.toml", tmp_path / "mine.toml"
    first.write_text("[train]\nsteps = 1\n", encoding="utf-8")
    second.write_bytes(b"\xef\xbb\xbf[train]\r\nsteps = 2\r\n")
    assert from_files([first, str(second)]) == [
        Layer(str(first), {"train": {"steps": 1}}),
        Layer(str(second), {"train": {"steps": 2}}),
    ]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("run.ini", b"a: 1", "only .toml, .json, .yaml and .yml are read (got '.ini')"),
        ("config", b"a = 1", "only .toml, .json, .yaml and .yml are read (got 'no suffix')"),
        (
            "a.yaml",
            b"a: 1\nb: [1,\n",
            "expected the node content, but found '<stream end>' (at line 3, column 1)",
        ),
        ("a.json", b'{"a": 1,\n"b" 2}', "Expecting ':' delimiter (at line 2, column 5)"),
        (
            "a.toml",
            b"a = 1\nb = 2021-\n",
            "Expected newline or end of document after a statement (at line 2, column 9)",
        ),
        ("a.toml", b"a = 1\na = 2\n", "the key a is written twice (at line 2, column 6)"),
        ("a.toml", b"a = \xff\n", "not UTF-8 text (byte 0xff at offset 4)"),
        ("a.toml", b"#" * (1 << 20) + b"#", "larger than 1 MiB, the most for a configuration"),
        ("a.toml", b"a = " + b"[" * 60 + b"]" * 60, "tables and arrays may nest at most 50 deep"),
        ("a.toml", b"a = " + b"[" * 20_000, "tables and arrays may nest at most 50 deep"),
        ("a.toml", b"[" + b"a." * 20_000 + b"a]", "tables and arrays may nest at most 50 deep"),
        ("a.toml", b"a = " + b"1" * 5000, "an integer has too many digits; at most 64 bits fit"),
    ],
)
def test_unusable_files(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert line(from_files, [path]) == f"{problem} @ {path}"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe.yaml"
    os.mkfifo(path)
    problem = "expected a file, found a pipe, a socket or a device"
    assert line(from_files, [path]) == f"{problem} @ {path}"


@pytest.mark.parametrize("suffix", [".toml", ".yaml", ".yml", ".json", ".YML"])
def test_a_schema_for_editors_is_no_setting(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"run{suffix}"
    written = by_suffix(path).dumps({"$schema": "neaptide.schema.json", "seed": 3})
    path.write_text(written, encoding="utf-8")
    assert values(from_files([path])) == [{"seed": 3}]


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    assert line(from_files, [tmp_path / "no.toml"]) == f"no such file @ {tmp_path}/no.toml"
    (tmp_path / "dir.toml").mkdir()
    assert line(from_files, [tmp_path / "dir.toml"]) == (
        f"expected a file, found a directory @ {tmp_path}/dir.toml"
    )
    said = line(from_files, ["a\0.toml"])  # each Python names the null in its own words
    assert re.fullmatch(r"cannot be read \(.*embedded null .*\) @ a\\u0000.toml", said)
    long = "a" * 5000 + ".toml"
    assert line(from_files, [long]) == f"cannot be read (File name too long) @ {long}"


def test_every_unusable_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        from_files([tmp_path / "a.toml", tmp_path, tmp_path / "b.toml"])
    assert caught.value.problems == (
        f"no such file @ {tmp_path}/a.toml",
        f"expected a file, found a directory @ {tmp_path}",
        f"no such file @ {tmp_path}/b.toml",
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        (" 3 ", 3),
        ("1e-3", 1e-3),
        ("true", True),
        ("True", "True"),
        ("[1, 2]", [1, 2]),
        ("[\n1,\n2\n]", [1, 2]),
        ("{a = 1}", {"a": 1}),
        ('"3"', "3"),
        ("'a b'", "a b"),
        ("runs/x", "runs/x"),
        ("a = b", "a = b"),
        ("", ""),
        ("007", "007"),
        ("2026-01-01", "2026-01-01"),
        ("07:32:00", "07:32:00"),
        ("1\nother = 2", "1\nother = 2"),
        ("1\n[other]", "1\n[other]"),
        ("[" * 20_000, "[" * 20_000),
    ],
)
def test_values_are_read_as_toml_where_they_are_toml(text: str, value: object) -> None:
    assert values(from_sets([f"a.b={text}"])) == [{"a": {"b": value}}]
    assert values(from_env({"NEAPTIDE__A__B": text})) == [{"a": {"b": value}}]


def test_settings_take_quoted_keys() -> None:
    assert values(from_sets([" plugins . \"a.b\" . 'c=d' = 1", r'"\u00e9".x=2'])) == [
        {"plugins": {"a.b": {"c=d": 1}}},
        {"é": {"x": 2}},
    ]


@pytest.mark.parametrize("text", ["train.steps", "=3", "train..steps=3", "a b=3", '"a=3', ""])
def test_what_is_no_setting_is_refused_with_an_example(text: str) -> None:
    shown = text.replace('"', '\\"')
    assert line(from_sets, [text]) == (
        f'expected key=value, such as train.steps=100 (got "{shown}") @ --set'
    )


def test_a_quoted_key_with_a_bad_escape_is_refused() -> None:
    assert line(from_sets, [r'"\q"=3']) == (
        r'expected a key such as train.steps (got "\"\\q\"") @ --set'
    )


def test_every_bad_setting_is_reported() -> None:
    with pytest.raises(ConfigError) as caught:
        from_sets(["a", "b=1", "c"])
    assert len(caught.value.problems) == 2


def test_variables_are_lower_cased_and_plugins_found_by_their_names() -> None:
    environ = {
        "NEAPTIDE__TRAIN__BATCH_SIZE": "4",
        "NEAPTIDE__PLUGINS__LAYER_DROP__RATE": "0.5",
        "NEAPTIDE__PLUGINS__UNKNOWN_ONE__X": "1",
        "NEAPTIDE__MODEL__OPTIONS__LAYER_DROP": "1",
        "NEAPTIDE_DISABLED_PLUGINS": "ema",
        "PATH": "/bin",
    }
    assert from_env(environ, ["ema", "layer-drop"]) == [
        Layer("NEAPTIDE__MODEL__OPTIONS__LAYER_DROP", {"model": {"options": {"layer_drop": 1}}}),
        Layer("NEAPTIDE__PLUGINS__LAYER_DROP__RATE", {"plugins": {"layer-drop": {"rate": 0.5}}}),
        Layer("NEAPTIDE__PLUGINS__UNKNOWN_ONE__X", {"plugins": {"unknown_one": {"x": 1}}}),
        Layer("NEAPTIDE__TRAIN__BATCH_SIZE", {"train": {"batch_size": 4}}),
    ]


@pytest.mark.parametrize("name", ["NEAPTIDE__", "NEAPTIDE__A__", "NEAPTIDE____A"])
def test_a_variable_with_an_empty_key_is_refused(name: str) -> None:
    assert line(from_env, {name: "1"}) == (
        f'expected keys joined by two underscores, such as NEAPTIDE__TRAIN__STEPS (got "{name}")'
    )


@pytest.mark.parametrize(
    ("layers", "origin"),
    [
        (lambda: from_sets([".".join("a" * 50) + "={b = 1}"]), "--set"),
        (lambda: from_env({"NEAPTIDE" + "__A" * 2000: "1"}), "NEAPTIDE" + "__A" * 2000),
    ],
)
def test_layers_have_a_limit_of_nesting(layers: Any, origin: str) -> None:
    problem = f"tables and arrays may nest at most 50 deep @ {origin}"
    assert line(lambda: merge(layers())) == problem


def test_a_preset_is_a_layer() -> None:
    layer = from_preset("tiny-cpu")
    assert layer.origin == "preset tiny-cpu"
    assert layer.values["train"] == {"steps": 60, "batch_size": 8}
