"""`neaptide config` and `neaptide presets`: what they print, and one line for each mistake."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from neaptide.config import loads, presets

if TYPE_CHECKING:
    from pathlib import Path

GIVE = "error: give a configuration file or --preset NAME (see neaptide presets list)\n"


def test_check_names_the_plugins_in_order(neaptide: Any) -> None:
    done = neaptide("config", "check", "--preset", "tiny-cpu")
    order = "predictor-drift -> builtin-models -> builtin-data"
    assert (0, f"ok: 60 updates, plugins in order: {order}\n", "") == (
        done.code,
        done.out,
        done.err,
    )


@pytest.mark.parametrize(
    "verb", [("config", "check"), ("run", "--quiet", "--set", "train.steps=1")]
)
def test_a_name_that_disables_nothing_is_told_of_once(
    neaptide: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    verb: tuple[str, ...],
) -> None:
    monkeypatch.setenv("NEAPTIDE_DISABLED_PLUGINS", "profilr, ema,?")
    assert 0 == neaptide(*verb, "tiny.toml").code
    said = "'?' is not installed, 'profilr' is not installed (did you mean 'profiler'?)"
    expected = f"NEAPTIDE_DISABLED_PLUGINS: {said}; see neaptide plugins list"
    assert [("WARNING", expected)] == [(one.levelname, one.getMessage()) for one in caplog.records]


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ("optimizer.name=adamwx", "unknown optimizer 'adamwx' (did you mean 'adamw'?)"),
        ("optimizer.options.weight_decai=1", "unknown option 'weight_decai' (did you mean"),
        ("model.name=tiny_task:modle", "'tiny_task' has no 'modle' (did you mean 'model'?)"),
        ("data.options.sekonds=1", "unknown option 'sekonds' (did you mean 'seconds'?)"),
    ],
)
def test_with_imports_what_needs_torch_is_checked(neaptide: Any, setting: str, error: str) -> None:
    assert 0 == neaptide("config", "check", "tiny.toml", "--imports").code
    assert 0 == neaptide("config", "check", "tiny.toml", "--set", setting).code
    done = neaptide("config", "check", "tiny.toml", "--imports", "--set", setting)
    assert (2, "") == (done.code, done.out)
    assert done.err.startswith(f"error: {error}")


@pytest.mark.parametrize("name", ["builtin", "a.b.c", ":b", "a:"])
def test_a_name_without_a_scheme_or_module_is_refused(neaptide: Any, name: str) -> None:
    done = neaptide("config", "check", "tiny.toml", "--set", f"model.name={name}")
    assert 2 == done.code
    assert f"or 'package.module:factory' (got {name!r}) @ model.name (from" in done.err


def test_check_as_json(neaptide: Any) -> None:
    done = neaptide("config", "check", "tiny.toml", "--json")
    assert {"ok": True, "plugins": ["predictor-drift", "profiler"]} == json.loads(done.out)


def test_show_prints_a_config_that_means_the_same(neaptide: Any, folder: Path) -> None:
    first = neaptide("config", "show", "tiny.toml", "--set", "train.steps=7")
    (folder / "shown.toml").write_text(first.out, encoding="utf-8")
    assert first == neaptide("config", "show", "shown.toml")
    as_json = neaptide("config", "show", "shown.toml", "--json")
    assert loads(first.out) == json.loads(as_json.out)
    assert 7 == loads(first.out)["train"]["steps"]


def test_later_sources_win(neaptide: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "mine.toml").write_text("seed = 2\n[train]\nsteps = 2\n", encoding="utf-8")
    monkeypatch.setenv("NEAPTIDE__SEED", "3")
    done = neaptide("config", "show", "--preset", "tiny-cpu", "tiny.toml", "mine.toml", "--json")
    shown = json.loads(done.out)
    assert (3, 2, 8) == (shown["seed"], shown["train"]["steps"], shown["train"]["batch_size"])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), GIVE),
        (("missing.toml",), "error: no such file @ missing.toml\n"),
        (
            ("tiny.toml", "--set", "version=2"),
            "error: version 2 is not one this Neaptide reads (it reads 1) @ version\n",
        ),
        (
            ("tiny.toml", "--set", "train.stpes=3"),
            "error: unknown key 'stpes' (did you mean 'steps'?) @ train.stpes (from --set)\n",
        ),
        (
            ("tiny.toml", "--set", "plugins.profilr.every=1"),
            (
                "error: plugin 'profilr' is not installed (did you mean 'profiler'?) "
                "@ plugins.profilr (from --set)\n"
            ),
        ),
        (
            ("tiny.toml", "--set", "train.steps"),
            'error: expected key=value, such as train.steps=100 (got "train.steps") @ --set\n',
        ),
        (
            ("--preset", "tiny-cpi"),
            "error: unknown preset 'tiny-cpi' (did you mean 'tiny-cpu'?)\n",
        ),
        (
            ("tiny.toml", "--set", "model.name=builtn:byte-gpt"),
            (
                "error: no installed plugin builds 'builtn:' (did you mean 'builtin'?); there is "
                "builtin, or name a 'package.module:factory' @ model.name\n"
            ),
        ),
    ],
)
def test_a_mistake_is_one_line(neaptide: Any, arguments: tuple[str, ...], error: str) -> None:
    done = neaptide("config", "check", *arguments)
    assert (2, "", error) == (done.code, done.out, done.err)


def test_every_mistake_is_listed(neaptide: Any) -> None:
    sets = ("--set", "train.steps=0", "--set", "seed=true")
    done = neaptide("config", "check", "tiny.toml", *sets)
    assert 2 == done.code
    assert [
        "error: 'steps' must be >= 1 (got 0) @ train.steps (from --set)",
        "error: expected an integer (got true, a boolean) @ seed (from --set)",
    ] == done.err.splitlines()


def test_a_mistake_as_json(neaptide: Any) -> None:
    done = neaptide("config", "show", "missing.toml", "--json")
    expected = {"error": "no such file @ missing.toml", "exit_code": 2}
    assert expected == json.loads(done.out)
    assert "error: no such file @ missing.toml\n" == done.err


def test_a_preset_is_listed_shown_and_copied(neaptide: Any, folder: Path) -> None:
    text = presets.text("tiny-cpu")
    listed = neaptide("presets", "list")
    rows = [line.split(maxsplit=1) for line in listed.out.splitlines()]
    assert ["tiny-cpu", text.splitlines()[0].removeprefix("# ")] in rows
    assert "tiny-cpu" in {
        row["name"] for row in json.loads(neaptide("presets", "list", "--json").out)
    }
    assert text == neaptide("presets", "show", "tiny-cpu").out
    copied = neaptide("presets", "copy", "tiny-cpu")
    assert "copied to tiny-cpu.toml; run it with: neaptide run tiny-cpu.toml\n" == copied.out
    assert text == (folder / "tiny-cpu.toml").read_text(encoding="utf-8")
    assert 0 == neaptide("config", "check", "tiny-cpu.toml").code


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_copy_may_be_of_another_format(neaptide: Any, folder: Path, suffix: str) -> None:
    done = neaptide("presets", "copy", "tiny-cpu", f"mine.{suffix}")
    assert (0, "note: comments are not carried over\n") == (done.code, done.err)
    copied = neaptide("config", "show", f"mine.{suffix}").out
    assert neaptide("config", "show", "--preset", "tiny-cpu").out == copied
    assert (folder / f"mine.{suffix}").exists()


def test_a_copy_without_a_known_suffix_is_refused(neaptide: Any) -> None:
    done = neaptide("presets", "copy", "tiny-cpu", "mine.ini")
    expected = "error: only .toml, .yaml, .yml and .json are read (got '.ini')\n"
    assert (2, expected) == (done.code, done.err)


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_is_a_configuration(neaptide: Any, name: str) -> None:
    done = neaptide("config", "check", "--preset", name)
    assert (0, "") == (done.code, done.err)
    assert done.out.startswith("ok: ")


STACKS = [name for name in presets.names() if name.startswith("stack-")]


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_says_that_it_is_composed_and_runs_with_a_file(
    neaptide: Any, folder: Path, name: str
) -> None:
    assert presets.text(name).startswith("# Combine with your own file: ")
    assert f"neaptide run --preset {name} mine.toml" in presets.text(name)
    neaptide("presets", "copy", "tiny-cpu", "mine.toml")
    short = ("train.steps=2", "train.device=cpu", "eval.every=0", "eval.batches=1")
    sets = [argument for setting in short for argument in ("--set", setting)]
    done = neaptide("run", "--preset", name, "mine.toml", *sets, "--json")
    assert (0, 2) == (done.code, json.loads(done.out)["steps"])


def test_a_copy_never_overwrites(neaptide: Any, folder: Path) -> None:
    (folder / "mine.toml").write_text("precious", encoding="utf-8")
    done = neaptide("presets", "copy", "tiny-cpu", "mine.toml")
    assert (2, "error: mine.toml exists already; name another file\n") == (done.code, done.err)
    assert "precious" == (folder / "mine.toml").read_text(encoding="utf-8")


def test_a_copy_into_nowhere_is_one_line(neaptide: Any) -> None:
    done = neaptide("presets", "copy", "tiny-cpu", "no/such/mine.toml")
    expected = "error: cannot write no/such/mine.toml: No such file or directory\n"
    assert (2, expected) == (done.code, done.err)


def test_a_module_beside_the_config_does_not_stand_for_one_of_torchs(
    command: Any, folder: Path
) -> None:
    (folder / "pickletools.py").write_text("raise ImportError\n", encoding="utf-8")
    assert 0 == command("config", "check", "tiny.toml", "--imports").code
