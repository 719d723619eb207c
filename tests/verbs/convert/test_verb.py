"""`neaptide config convert`, `schema` and `show` in every format."""

from __future__ import annotations

import json
import sys
import textwrap
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from neaptide.config import all_formats, by_name
from neaptide.hooks.registry import installed_plugins

if TYPE_CHECKING:
    from pathlib import Path

DEEPSPEED = {
    "train_batch_size": 8,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
    "gradient_clipping": "auto",
}


@pytest.mark.parametrize("notation", all_formats())
def test_a_run_is_configured_in_any_format(neaptide: Any, folder: Path, notation: str) -> None:
    expected = neaptide("config", "show", "tiny.toml", "--json").out
    shown = neaptide("config", "show", "tiny.toml", "--format", notation)
    assert (0, "") == (shown.code, shown.err)
    (folder / f"same.{notation}").write_text(shown.out, encoding="utf-8")
    assert expected == neaptide("config", "show", f"same.{notation}", "--json").out


def test_files_of_all_formats_compose(neaptide: Any, folder: Path) -> None:
    (folder / "b.yaml").write_text("train: {steps: 3}\noptimizer: {lr: 2e-5}\n", encoding="utf-8")
    (folder / "c.json").write_text('{"train": {"steps": 4}}', encoding="utf-8")
    done = neaptide("config", "show", "tiny.toml", "b.yaml", "c.json", "--json")
    shown = json.loads(done.out)
    assert (4, 2e-5, "cpu") == (
        shown["train"]["steps"],
        shown["optimizer"]["lr"],
        shown["train"]["device"],
    )


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        (
            "a.yaml",
            "train: {stpes: 1}",
            "unknown key 'stpes' (did you mean 'steps'?) @ train.stpes",
        ),
        ("a.json", '{"sed": 1}', "unknown key 'sed' (did you mean 'seed'?) @ sed"),
        ("a.yml", "a: b: c", "mapping values are not allowed here (at line 1, column 5) @ a.yml"),
        (
            "a.json",
            '{"a": 1,}',
            "Expecting property name enclosed in double quotes (at line 1, column 9) @ a.json",
        ),
        ("a.txt", "", "only .toml, .json, .yaml and .yml are read (got '.txt') @ a.txt"),
    ],
)
def test_a_mistake_is_one_line(
    neaptide: Any, folder: Path, name: str, content: str, error: str
) -> None:
    (folder / name).write_text(content, encoding="utf-8")
    done = neaptide("config", "check", name)
    if sys.version_info >= (3, 13):  # which has its own words for it
        error = error.replace(
            "Expecting property name enclosed in double quotes (at line 1, column 9)",
            "Illegal trailing comma before end of object (at line 1, column 8)",
        )
    assert (2, "", f"error: {error}\n") == (done.code, done.out, done.err)


def test_every_origin_is_shown(
    neaptide: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "mine.yaml").write_text("eval: {batches: 2}\n", encoding="utf-8")
    monkeypatch.setenv("NEAPTIDE__SEED", "3")
    sets = ("--set", "train.steps=30", "--set", "plugins.mixed-precision.preset=conservative")
    command = ("config", "show", "mine.yaml", "--preset", "tiny-cpu", *sets, "--origin")
    rows = {row["path"]: row for row in json.loads(neaptide(*command, "--json").out)}
    assert {"path": "train.steps", "value": 30, "origin": "--set"} == rows["train.steps"]
    assert {
        "eval.batches": "mine.yaml",
        "eval.every": "preset tiny-cpu",
        "seed": "NEAPTIDE__SEED",
        "optimizer.options": "default",
        "plugins.mixed-precision.predict": "preset conservative of plugin mixed-precision",
        "plugins.builtin-models": "builds the model or data set of model.name or data.name",
    }.items() <= {path: row["origin"] for path, row in rows.items()}.items()
    lines = [line.split() for line in neaptide(*command).out.splitlines()]
    assert ["train.steps", "=", "30", "--set"] in lines
    assert ["run.progress", "=", '"auto"', "default"] in lines
    assert len(rows) == len(lines)


def test_the_schema_is_printed(neaptide: Any) -> None:
    done = neaptide("config", "schema")
    assert (0, "") == (done.code, done.err)
    schema = json.loads(done.out)
    Draft202012Validator.check_schema(schema)
    shown = json.loads(neaptide("config", "show", "tiny.toml", "--json").out)
    Draft202012Validator(schema).validate(shown)
    assert done == neaptide("config", "schema", "--json")


BROKEN = """
import sys
from importlib.metadata import EntryPoint, EntryPoints
from neaptide import plugin

entries = plugin.entry_points()
broken = EntryPoint("broken", "no_such_module:SPEC", "neaptide.plugins")

class More:
    def select(self, group):
        more = [broken] if group == broken.group else []
        return EntryPoints([*entries.select(group=group), *more])

plugin.entry_points = More
from neaptide.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_broken_plugin_is_left_out_of_the_schema(environment: dict[str, str]) -> None:
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(BROKEN), "config", "schema"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert 0 == done.returncode
    assert done.stderr.startswith(
        "WARNING: left out of the schema: plugin 'broken' from an unknown"
    )
    tables = json.loads(done.stdout)["properties"]["plugins"]["properties"]
    assert list(installed_plugins()) == list(tables)


LAZY = """
import sys
from neaptide.cli import main
code = main(sys.argv[1:])
sys.stdout.write(f"{code} {sorted({'yaml', 'torch'} & set(sys.modules))}")
"""


@pytest.mark.parametrize(
    ("arguments", "imported"),
    [
        (["config", "check", "tiny.toml"], "0 []"),
        (["config", "convert", "ds.json", "a.toml", "--from", "deepspeed"], "0 []"),
        (["config", "convert", "a.json", "a.yaml"], "0 ['yaml']"),
        (["config", "convert", "a.yml", "b.json"], "0 ['yaml']"),
    ],
)
def test_only_reading_or_writing_yaml_imports_it(
    folder: Path, environment: dict[str, str], arguments: list[str], imported: str
) -> None:
    import subprocess

    (folder / "ds.json").write_text(json.dumps(DEEPSPEED), encoding="utf-8")
    (folder / "a.yml").write_text("seed: 1\n", encoding="utf-8")
    (folder / "a.json").write_text('{"seed": 1}', encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", LAZY, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert imported == done.stdout.splitlines()[-1]


def test_a_file_is_converted_there_and_back(neaptide: Any, folder: Path) -> None:
    chain = ("tiny.toml", "a.yaml", "b.json", "c.toml")
    for source, target in pairwise(chain):
        done = neaptide("config", "convert", source, target)
        assert (0, f"converted to {target}\n", "") == (done.code, done.out, done.err)
    first = by_name("toml").loads((folder / "tiny.toml").read_text(encoding="utf-8"))
    last = by_name("toml").loads((folder / "c.toml").read_text(encoding="utf-8"))
    assert json.dumps(first, sort_keys=True) == json.dumps(last, sort_keys=True)


def test_without_a_target_it_is_printed_and_lost_comments_are_said(
    neaptide: Any, folder: Path
) -> None:
    (folder / "a.toml").write_text("seed = 3  # mine\n", encoding="utf-8")
    done = neaptide("config", "convert", "a.toml", "--to", "yaml")
    assert (0, "seed: 3\n", "note: comments are not carried over\n") == (
        done.code,
        done.out,
        done.err,
    )
    done = neaptide("config", "convert", "a.toml", "--to", "yaml", "--json")
    assert {
        "path": None,
        "format": "yaml",
        "config": {"seed": 3},
        "remarks": [],
        "notes": ["comments are not carried over"],
    } == json.loads(done.out)


@pytest.mark.parametrize(
    ("name", "text", "lost"),
    [
        ("a.toml", 'a = "#1"\n\'#k\' = \'#\'\nb = """\n# no\n"""\nc = [1, 2]\n', False),
        ("a.toml", 'a = "#1" #\n', True),
        ("a.toml", "a = [\n1, # one\n2]\n", True),
        ("a.toml", "#", True),
        ("a.yaml", "a: x#1\n'#k': \"# no\"\nb: |\n  # no\nc: [1, '#']\n", False),
        ("a.yaml", "a: 1 # one\n", True),
        ("a.yaml", "a: [1, # one\n 2]\n", True),
        ("a.yaml", "b: |  # header\n  text\n", True),
        ("a.yaml", "b: >-\n  text\n\n# after\nc: 1\n", True),
        ("a.yaml", "# first\na: 1", True),
        ("a.json", '{"a": "#1"}', False),
    ],
)
def test_comments_are_told_from_what_looks_like_them(
    neaptide: Any, folder: Path, name: str, text: str, *, lost: bool
) -> None:
    within = {
        "a.toml": f"[model.options]\n{text}",
        "a.yaml": f"model:\n  options:\n{textwrap.indent(text, '    ')}",
        "a.json": f'{{"model": {{"options": {text}}}}}',
    }
    (folder / name).write_text(within[name], encoding="utf-8")
    done = neaptide("config", "convert", name, "--to", "json")
    assert (0, "note: comments are not carried over\n" if lost else "") == (done.code, done.err)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("tiny.toml",), "name a file to write, or give --to with one of toml, json, yaml"),
        (("tiny.toml", "tiny.toml"), "tiny.toml exists already; name another file"),
        (("no.toml", "a.json"), "no such file @ no.toml"),
        (
            ("tiny.toml", "a.ini"),
            "only .toml, .json, .yaml and .yml are read (got '.ini')",
        ),
        (("tiny.toml", "a.yml", "--to", "json"), "--to json contradicts the suffix of a.yml"),
        (("tiny.toml", "--to", "yml"), "unknown format 'yml' (did you mean 'yaml'?)"),
        (
            ("nan.toml", "--to", "json"),
            "expected a finite number (got nan) @ model.options.a in nan.toml",
        ),
        (
            ("ds.json", "--from", "deepsped"),
            "unknown framework 'deepsped' (did you mean 'deepspeed'?)",
        ),
        (
            ("wrong.json", "a.toml", "--from", "deepspeed"),
            'expected an integer (got "8", a string) @ train_batch_size',
        ),
        (
            ("range.json", "a.toml", "--from", "deepspeed"),
            "'batch_size' must be >= 1 (got 0) @ train.batch_size",
        ),
        (("tiny.toml", "no/such/a.json"), "cannot write no/such/a.json: No such file or directory"),
    ],
)
def test_what_cannot_be_converted_is_one_line_and_writes_nothing(
    neaptide: Any, folder: Path, arguments: tuple[str, ...], error: str
) -> None:
    (folder / "nan.toml").write_text("model.options.a = nan\n", encoding="utf-8")
    (folder / "ds.json").write_text("{}", encoding="utf-8")
    (folder / "wrong.json").write_text('{"train_batch_size": "8"}', encoding="utf-8")
    (folder / "range.json").write_text('{"train_batch_size": 0}', encoding="utf-8")
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    done = neaptide("config", "convert", *arguments)
    assert (2, "", f"error: {error}\n") == (done.code, done.out, done.err)
    assert before == {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_from_deepspeed(neaptide: Any, folder: Path) -> None:
    (folder / "ds.json").write_text(json.dumps(DEEPSPEED), encoding="utf-8")
    done = neaptide("config", "convert", "ds.json", "out.toml", "--from", "deepspeed")
    assert (0, "converted to out.toml\n") == (done.code, done.out)
    assert [
        (
            "differs: bf16.enabled = true: weights stay in fp32 and forwards run under autocast; "
            "DeepSpeed casts the weights"
        ),
        ("left out: zero_optimization.stage = 2: sharding has no counterpart in this version"),
        (
            'left out: gradient_clipping = "auto": "auto" is filled in by the Hugging Face '
            "Trainer; write the value yourself"
        ),
        ("note: it has no model and no data: name them in [model] and [data], or pass your own"),
    ] == done.err.splitlines()
    checked = neaptide("config", "check", "out.toml")
    assert "ok: 1000 updates, plugins in order: mixed-precision\n" == checked.out
    printed = neaptide("config", "convert", "ds.json", "--from", "deepspeed")
    assert (folder / "out.toml").read_text(encoding="utf-8") == printed.out
    as_json = json.loads(
        neaptide("config", "convert", "ds.json", "--from", "deepspeed", "--json").out
    )
    assert by_name("toml").loads(printed.out) == as_json["config"]
    assert {
        "key": "zero_optimization.stage",
        "value": 2,
        "carried": False,
        "text": "sharding has no counterpart in this version",
    } in as_json["remarks"]


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.json", json.dumps(DEEPSPEED), "these are settings of deepspeed; add --from deepspeed"),
        ("a.json", '{"sed": 1}', "unknown key 'sed' (did you mean 'seed'?) @ sed"),
        ("a.yaml", "train: {steps: many}", 'expected an integer (got "many", a string)'),
    ],
)
def test_what_is_no_configuration_is_not_converted(
    neaptide: Any, folder: Path, name: str, content: str, error: str
) -> None:
    (folder / name).write_text(content, encoding="utf-8")
    done = neaptide("config", "convert", name, "b.toml")
    assert (2, "") == (done.code, done.out)
    assert done.err.startswith(f"error: {error}")
    assert done.err.endswith(f" in {name}\n")
    assert not (folder / "b.toml").exists()
