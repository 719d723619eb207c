"""`neaptide config`: what it prints, and one line for each mistake."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from neaptide.config import loads

if TYPE_CHECKING:
    from pathlib import Path

GIVE = "error: give a configuration file or --preset NAME (see neaptide presets list)\n"


def test_check_names_the_plugins_in_order(neaptide: Any) -> None:
    done = neaptide("config", "check", "--preset", "tiny-cpu")
    order = "lr-schedule -> predictor-drift -> builtin-models -> builtin-data"
    assert (0, f"ok: 60 updates, plugins in order: {order}\n", "") == (
        done.code,
        done.out,
        done.err,
    )


def test_check_tells_a_length_in_epochs(neaptide: Any, folder: Path) -> None:
    (folder / "epochs.toml").write_text("train.epochs = 2", encoding="utf-8")
    assert (
        "ok: epochs: 2, plugins in order: none\n" == neaptide("config", "check", "epochs.toml").out
    )


@pytest.mark.parametrize(
    "verb", [("config", "check"), ("run", "--quiet", "--set", "train.steps=20")]
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
    plugins = ["predictor-drift", "profiler"]
    assert {"ok": True, "plugins": plugins, "warnings": []} == json.loads(done.out)


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ("optimizer.options.weight_decai=1", "unknown option 'weight_decai' (did you mean"),
        (
            "optimizer.options={weight_decay = 0.1, betas = 0.9}",
            (
                "AdamW refused betas = 0.9: 'float' object is not subscriptable "
                "@ optimizer.options.betas"
            ),
        ),
        ("train.device=cuda:99", "this machine has "),
        (
            "optimizer.weight_decay=0.1",
            (
                "unknown key 'weight_decay' (known: name, lr, options); write it as "
                "optimizer.options.weight_decay @ optimizer.weight_decay"
            ),
        ),
    ],
)
def test_check_tries_the_optimizer_and_the_device(neaptide: Any, setting: str, error: str) -> None:
    done = neaptide("config", "check", "tiny.toml", "--set", setting)
    assert (2, "") == (done.code, done.out)
    assert done.err.startswith(f"error: {error}")


def test_two_settings_that_are_refused_together_are_not_blamed_alone(neaptide: Any) -> None:
    options = "optimizer.options={fused = true, foreach = true}"
    done = neaptide("config", "check", "tiny.toml", "--set", options)
    assert 2 == done.code
    assert done.err.startswith("error: AdamW refused its settings: ")


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        (
            ("phases.warmup.steps=100",),
            (
                "all 24 updates are in Warmup, which lasts 100 (train.steps = 24) "
                "@ phases.warmup.steps"
            ),
        ),
        (
            ("phases.full.steps=90",),
            (
                "no update is predicted: Warmup and Full last 3 + 90 updates (train.steps = 24) "
                "@ phases.full.steps"
            ),
        ),
        (
            ("model.name=",),
            "`neaptide run` needs model.name; HybridTrainer takes the model from your code",
        ),
    ],
)
def test_check_warns_of_what_has_no_effect_or_is_missing(
    neaptide: Any, caplog: pytest.LogCaptureFixture, settings: tuple[str, ...], warning: str
) -> None:
    sets = [argument for each in settings for argument in ("--set", each)]
    assert 0 == neaptide("config", "check", "tiny.toml", *sets).code
    assert [warning] == [one.getMessage() for one in caplog.records]
    done = neaptide("config", "check", "tiny.toml", *sets, "--json")
    assert [warning] == json.loads(done.out)["warnings"]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            ("plugins.lr-schedule.warmup=50",),
            (
                "a warmup of 50 updates do not fit into train.steps = 24 (got 50) "
                "@ plugins.lr-schedule.warmup"
            ),
        ),
        (
            ("train.epochs=3",),
            (
                "'epochs' and 'steps' (24) are both set; remove one (got 3) "
                "@ train.epochs (from --set)"
            ),
        ),
        (
            ("schedule.name=linear", "schedule.warmup_steps=5"),
            (
                "[schedule] is not a section since 0.1: write [plugins.lr-schedule] with "
                'name = "linear", warmup = 5, count_jumps = false @ schedule (from --set)'
            ),
        ),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else "",
)
def test_check_and_run_refuse_in_the_same_line(
    neaptide: Any, settings: tuple[str, ...], line: str
) -> None:
    sets = [argument for each in settings for argument in ("--set", each)]
    for verb in (("config", "check"), ("run",)):
        done = neaptide(*verb, "tiny.toml", *sets)
        assert (2, "", f"error: {line}\n") == (done.code, done.out, done.err)


@pytest.mark.parametrize(
    ("name", "module"),
    [("nowhere.deep:make", "nowhere.deep"), ("../tiny_task:model", "../tiny_task")],
)
@pytest.mark.parametrize("key", ["model", "data"])
def test_check_refuses_a_module_that_is_not_there_and_imports_none(
    neaptide: Any, folder: Path, key: str, name: str, module: str
) -> None:
    done = neaptide("config", "check", "tiny.toml", "--set", f"{key}.name='{name}'")
    assert 2 == done.code
    assert done.err.startswith(f"error: there is no module '{module}'")
    assert f"@ {key}.name" in done.err
    (folder / "raising.py").write_text("raise RuntimeError\n", encoding="utf-8")
    assert 0 == neaptide("config", "check", "tiny.toml", "--set", "model.name=raising:make").code


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("NEAPTIDE_TRAIN_STEPS", "NEAPTIDE__TRAIN__STEPS"),
        ("NEAPTIDE_TRAIN__BATCH_SIZE", "NEAPTIDE__TRAIN__BATCH_SIZE"),
        ("NEAPTIDE_SEED", "NEAPTIDE__SEED"),
        ("NEAPTIDE_PLUGINS_EMA_DECAY", "NEAPTIDE__TRAIN__STEPS"),
    ],
)
@pytest.mark.parametrize("verb", [("config", "check"), ("run", "--quiet")])
def test_a_variable_that_nearly_is_a_setting_is_told_of(
    neaptide: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variable: str,
    meant: str,
    verb: tuple[str, ...],
) -> None:
    monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("NEAPTIDE_CACHE_DIR", "somewhere")
    assert 0 == neaptide(*verb, "tiny.toml").code
    expected = f"{variable} sets nothing: keys are joined by two underscores, as in {meant}"
    assert [expected] == [one.getMessage() for one in caplog.records]


def test_show_prints_a_config_that_means_the_same(neaptide: Any, folder: Path) -> None:
    first = neaptide("config", "show", "tiny.toml", "--set", "train.steps=7")
    (folder / "shown.toml").write_text(first.out, encoding="utf-8")
    assert first == neaptide("config", "show", "shown.toml")
    as_json = neaptide("config", "show", "shown.toml", "--json")
    assert loads(first.out) == json.loads(as_json.out)
    assert 7 == loads(first.out)["train"]["steps"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ((), True),
        (("optimizer.name=ADAM",), True),
        (("optimizer.name=sgd",), False),
        (("optimizer.options.fused=false",), False),
        (("optimizer.options.foreach=true",), False),
    ],
)
def test_show_says_where_the_optimizer_is_fused(
    neaptide: Any, settings: tuple[str, ...], *, told: bool
) -> None:
    words = ("config", "show", "tiny.toml", *(f"--set={one}" for one in settings))
    for form in ("toml", "yaml", "json"):
        shown = neaptide(*words, "--format", form).out
        assert (told and form != "json") is ("is fused where PyTorch can fuse it" in shown)


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
                "builtin, hf, or name a 'package.module:factory' @ model.name\n"
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


def test_a_module_beside_the_config_does_not_stand_for_one_of_torchs(
    start: Any, folder: Path
) -> None:
    (folder / "pickletools.py").write_text("raise ImportError\n", encoding="utf-8")
    process = start("config", "check", "tiny.toml", "--imports")  # which imports torch itself
    _, err = process.communicate(timeout=120)
    assert 0 == process.returncode, err


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("keys.toml", "\n".join(f"k{n} = 1" for n in range(20_000))),
        ("key.toml", f"{'k' * 1_000_000} = 1\n"),
        ("options.toml", "[plugins.ema]\n" + "\n".join(f"k{n} = 1" for n in range(20_000))),
        ("plugins.toml", "\n".join(f"[plugins.k{n}]" for n in range(20_000))),
        ("value.json", json.dumps({"seed": "x" * 1_000_000})),
        ("items.yaml", "x:\n" + "- 1\n" * 250_000),
    ],
)
def test_errors_take_at_most_a_screen(neaptide: Any, folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text, encoding="utf-8")
    for command in (("config", "check"), ("run",)):
        done = neaptide(*command, name)
        lines = done.err.splitlines()
        assert 2 == done.code
        assert 1 <= len(lines) <= 24
        assert max(map(len, lines)) < 1100
        document = json.loads(neaptide(*command, name, "--json").out)
        assert len(json.dumps(document)) < 30_000
