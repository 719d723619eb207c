"""`neaptide verify` and `neaptide plugins check` as people start them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

ARGUMENTS = ("verify", "tiny.toml", "--set", "model.name=verified:{}")


def arguments(model: str, *more: str) -> list[str]:
    data = ("--set", "data.name=verified:batches", "--set", "phases.warmup.steps=0")
    return [*(one.format(model) for one in ARGUMENTS), *data, "--no-memory", *more]


def test_what_is_right_ends_with_zero(folder: Path, neaptide: Any) -> None:
    done = neaptide(*arguments("net", "--json", "--steps", "2", "--set", "plugins.ema.decay=0.9"))
    assert 0 == done.code, done.err
    found = json.loads(done.out)
    assert (True, [], 2) == (found["right"], found["findings"], found["steps"])
    assert "ema" in found["exact"]
    assert not (folder / "runs").exists()


def test_what_differs_ends_with_one_and_a_report(folder: Path, neaptide: Any) -> None:
    private = ("--report", "told", "--steps", "4")
    done = neaptide(*arguments("net_that_loses", *private))
    assert 1 == done.code
    assert "resume: the model, the data or the optimizer, without a plugin" in done.out
    told = json.loads((folder / "told" / "verify.json").read_text())
    assert {"verification", "config", "machine"} == told.keys()
    assert "run" not in told["config"]
    assert str(folder) not in (folder / "told" / "verify.json").read_text()
    again = neaptide(*arguments("net_that_loses", *private))
    assert (2, "error: told exists already; name a new directory @ --report\n") == (
        again.code,
        again.err.splitlines(keepends=True)[-1],
    )


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ("seed = 3\n", "train otherwise: seed is 0 and 3"),
        ("[plugins.lr-schedule]\n", "plugin 'lr-schedule' is not exact (changes-training)"),
    ],
)
def test_another_training_is_refused(folder: Path, neaptide: Any, other: str, problem: str) -> None:
    text = (folder / "tiny.toml").read_text()
    first, _, rest = text.partition("[model]")
    other_text = f"{other}{first}[model]{rest}" if "seed" in other else f"{text}\n{other}"
    (folder / "other.toml").write_text(other_text)
    done = neaptide("verify", "tiny.toml", "--against", "other.toml", "--no-memory")
    assert 2 == done.code
    assert problem in done.err
    assert 1 == len(done.err.splitlines())


def test_two_exact_configurations_are_the_same(folder: Path, neaptide: Any) -> None:
    text = (folder / "tiny.toml").read_text()
    (folder / "other.toml").write_text(f"{text}\n[plugins.optimizer-offload]\n")
    done = neaptide("verify", "tiny.toml", "--against", "other.toml", "--no-memory", "--steps", "2")
    assert 0 == done.code, done.out + done.err


def test_one_update_is_too_few(neaptide: Any) -> None:
    done = neaptide("verify", "tiny.toml", "--steps", "1")
    assert (2, 1) == (done.code, len(done.err.splitlines()))
    assert "at least 2 updates (got 1)" in done.err


def test_a_plugin_is_checked_with_the_settings_of_a_file(folder: Path, neaptide: Any) -> None:
    (folder / "ema.toml").write_text("[plugins.ema]\ndecay = 0.5\n")
    laws = ("--law", "config-round-trips", "--law", "resume-is-exact")
    done = neaptide("plugins", "check", "ema", "ema.toml", *laws, "--json")
    assert 0 == done.code, done.err
    assert [True, True] == [one["kept"] for one in json.loads(done.out)]


def test_an_unknown_plugin_and_a_plugin_that_is_not_enabled(neaptide: Any) -> None:
    done = neaptide("plugins", "check", "emma")
    assert (2, True) == (done.code, "plugin 'emma' is not installed" in done.err)
    done = neaptide("plugins", "check", "adam8bit", "tiny.toml")
    assert (2, True) == (done.code, "@ plugins.adam8bit" in done.err)
