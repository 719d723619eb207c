"""`neaptide compare` end to end on a tiny task: real workers, kept trials, stops and refusals."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from neaptide_verbs.compare.trials import Result, TrainingTrial
from neaptide_verbs.compare.verb import _TrialLines

QUICK = ("compare", "tiny.toml", "--seeds", "7", "--baseline", "as-is", "--jobs", "1")


def found(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
    return document


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for trials that several tests use: the same settings train once."""
    return tmp_path_factory.mktemp("shared")


def test_an_untuned_baseline_is_not_called_tuned(neaptide: Any, shared: Path) -> None:
    done = neaptide(*QUICK, "--out", shared)
    assert 0 == done.code, done.err
    assert "nothing swept: it may not be called tuned" in done.out
    assert "speedup" not in done.out
    assert "candidate: against an untuned baseline" in done.out
    assert done.out.lstrip().startswith("Jumps")
    assert "The baseline is not tuned.\n" in done.out.split("\n\n")[0] + "\n"
    results = found(shared)
    assert not results["baseline_is_tuned"]
    assert [17, 24, 34] == [at["passes"] for at in results["sides"]["baseline"]["budgets"]]
    assert [17, 24] == [at["passes"] for at in results["sides"]["candidate"]["budgets"]]
    own = results["sides"]["baseline"]["budgets"][1]["plain"]["multiplier"]
    assert pytest.approx(1.0) == own["mean"]
    assert sum(at["jumps"] for at in results["sides"]["candidate"]["budgets"]) > 0
    page = (shared / "compare.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_what_is_trained_is_kept(neaptide: Any, shared: Path) -> None:
    neaptide(*QUICK, "--out", shared)
    again = neaptide(*QUICK, "--out", shared)
    lines = again.err.splitlines()
    assert 5 == len(lines)
    assert all(line.endswith("(kept)") for line in lines)
    planned = neaptide(*QUICK, "--out", shared, "--dry-run")
    assert "0 trials: 0 reported (seeds 7); 5 more are kept\n" == planned.out


def test_a_trial_is_the_run_of_its_settings_to_the_bit(neaptide: Any, shared: Path) -> None:
    neaptide(*QUICK, "--out", shared)
    runs = found(shared)["runs"]
    (trained,) = [run for run in runs if run["side"] == "candidate" and run["fraction"] == 1.0]
    # The digest is also of what plugins hold, and the average is there on both sides.
    sets = ("seed=7", "run.dir=alone", "eval.every=0", "plugins.ema.enabled=true")
    done = neaptide("run", "tiny.toml", *(f"--set={setting}" for setting in sets), "--json")
    alone = json.loads(done.out)
    assert (alone["digest"], alone["jumps"]) == (trained["digest"], trained["jumps"])
    assert alone["val_loss"] == trained["averaged"]


def test_a_dry_run_counts_trials_and_seconds(neaptide: Any, folder: Path) -> None:
    done = neaptide(*QUICK[:2], "--seeds", "7,8,9", "--jobs", "1", "--dry-run", "--json")
    plan = json.loads(done.out)
    assert [0, 1, 2] == plan["tuning_seeds"]
    assert (15, 0) == (plan["reported"], plan["kept"])
    assert plan["tuned"] + 15 == plan["trials"] < plan["most_trials"]
    assert 0.0 < plan["seconds"] < plan["most_seconds"]
    assert not (folder / "runs").exists()


def test_it_is_printed_as_json(neaptide: Any, shared: Path) -> None:
    done = neaptide(*QUICK, "--out", shared, "--json", "--quiet")
    assert (0, "") == (done.code, done.err)
    assert found(shared)["runs"] == json.loads(done.out)["runs"]


@pytest.mark.slow
def test_a_tuned_baseline_is_named_with_what_was_swept(neaptide: Any, shared: Path) -> None:
    short = ("--set", "train.steps=8", "--set", "phases.warmup.steps=1")
    done = neaptide(
        *("compare", "tiny.toml", *short, "--seeds", "7", "--out", shared / "tuned"),
        *("--tuning-seeds", "0"),
    )
    assert 0 == done.code, done.err
    assert (
        "tuned baseline (learning rate, warmup, decay swept; initialisation as configured)"
        in done.out
    )
    sides = found(shared / "tuned")["sides"]
    assert ["learning rate"] == sides["candidate"]["swept"]
    for side in sides.values():
        rates = [tried["changes"]["optimizer"]["lr"] for tried in side["tried"]]
        assert len(set(rates)) >= 5
        assert side["chosen"]["optimizer"]["lr"] in rates


def test_against_another_configuration(neaptide: Any, shared: Path) -> None:
    Path("plain.toml").write_text(
        Path("tiny.toml").read_text().split("[plugins.predictor-drift]")[0]
        + '[optimizer]\nname = "sgd"\n'
    )
    done = neaptide(*QUICK, "--against", "plain.toml", "--out", shared)
    assert 0 == done.code, done.err
    sides = ["baseline", "candidate", "candidate-without-jumps", "baseline-with-jumps"]
    assert sides == list(found(shared)["sides"])


def test_findings_are_named_after_all_that_is_compared(neaptide: Any) -> None:
    Path("smaller.toml").write_text("[phases.predict]\nmax_horizon = 3\n")
    Path("other.toml").write_text(Path("tiny.toml").read_text() + '[optimizer]\nname = "sgd"\n')
    for name in ("tiny-smaller", "tiny-smaller-against-other"):
        Path(f"runs/{name}-compare").mkdir(parents=True)
        Path(f"runs/{name}-compare/workers.log").mkdir()  # it ends before the first trial
    told = neaptide("compare", "tiny.toml", "smaller.toml", *QUICK[2:])
    assert "cannot write runs/tiny-smaller-compare/workers.log" in told.err
    told = neaptide("compare", "tiny.toml", "smaller.toml", *QUICK[2:], "--against", "other.toml")
    assert "cannot write runs/tiny-smaller-against-other-compare/workers.log" in told.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--seeds", "1,x"),
            "expected comma-separated seeds from 0 to 10**18 - 1, such as 10,11,12 (got '1,x')",
        ),
        (("--seeds", "3,3"), "each seed may be given only once (got 3 twice) @ --seeds"),
        (("--seeds", "4", "--tuning-seeds", "3,4"), "seed 4 is one on which both sides are tuned"),
        (("--tuning-seeds", ""), "an argument is empty"),
        (("--tuning-seeds", "a"), "(got 'a') @ --tuning-seeds"),
        (("--set", "plugins.predictor-drift.enabled=false"), "no enabled plugin claims"),
        (("--against", "tiny.toml"), "are the same: nothing to compare @ --against"),
        (("--against", "nowhere.toml"), "nowhere.toml"),
        (("--out", "tiny.toml"), "cannot make tiny.toml: File exists; give another --out DIR"),
        (("--jobs", "-1"), "--jobs"),
    ],
)
def test_bad_usage_is_one_line(neaptide: Any, arguments: tuple[str, ...], words: str) -> None:
    done = neaptide("compare", "tiny.toml", *arguments)
    assert 2 == done.code
    assert words in done.err
    assert 1 == done.err.count("\n")


def test_what_a_users_code_raises_ends_it_with_the_trial(neaptide: Any) -> None:
    done = neaptide(*QUICK, "--set", "model.name=tiny_task:broken")
    assert 1 == done.code
    last = done.err.splitlines()[-1]
    assert last.startswith("error: KeyError: 'a line\\nand another' (raised by ")
    assert last.endswith("workers.log [baseline, seed 7 17 updates]")
    log = Path("runs/tiny-compare/workers.log").read_text(encoding="utf-8")
    assert "Traceback (most recent call last)" in log
    assert "in broken" in log


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_validation", "the data has no validation batches to compare losses on"),
        ("empty_validation", "the validation data is empty: there is no loss to compare"),
        ("passing_validation", "this list_iterator is exhausted after the first pass; give a list"),
    ],
)
def test_losses_need_validation_batches_for_more_than_one_pass(
    neaptide: Any, folder: Path, name: str, words: str
) -> None:
    (folder / "own_data.py").write_text(
        "from tiny_task import data\n\n"
        "def no_validation():\n    return data()[0]\n\n"
        "def empty_validation():\n    return data()[0], []\n\n"
        "def passing_validation():\n    return data()[0], iter(data()[1])\n"
    )
    done = neaptide(*QUICK, "--set", f"data.name=own_data:{name}")
    assert 1 == done.code
    assert words in done.err.splitlines()[-1]


def test_a_side_that_diverges_has_no_multiplier(neaptide: Any, shared: Path) -> None:
    nan = ("--set", "model.name=tiny_task:diverging", "--set", "train.max_skipped=2")
    done = neaptide(*QUICK, *nan, "--out", shared)
    assert 0 == done.code, done.err
    assert "no multiplier" in done.out
    assert {"inf"} == {run["loss"] for run in found(shared)["runs"]}


def test_stopped_it_goes_on(start: Any, neaptide: Any, folder: Path) -> None:
    slow = ("--set", "data.options.seconds=0.04")
    process = start(*QUICK, *slow)
    for line in process.stderr:
        if "seed 7 17 updates" in line:
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert 130 == process.returncode
    assert errors.endswith("stopped by a signal; repeat the command to continue\n")
    again = neaptide(*QUICK, *slow)
    assert 0 == again.code, again.err
    assert "(kept)" in again.err
    assert 5 == len(found(folder / "runs/tiny-compare")["runs"])


@pytest.mark.slow
def test_two_at_once_train_each_trial_once(start: Any, neaptide: Any, folder: Path) -> None:
    slow = ("--set", "data.options.seconds=0.01", "--out", "both")
    process = start(*QUICK, *slow)
    here = neaptide(*QUICK, *slow)
    _, errors = process.communicate(timeout=60)
    assert (0, 0) == (here.code, process.returncode), here.err + errors
    once = {path.parent.name for path in (folder / "both/trials").glob("*/result.json")}
    assert 5 == len(once)


def test_what_cannot_be_written_is_said(neaptide: Any, folder: Path) -> None:
    (folder / "out/workers.log").mkdir(parents=True)
    done = neaptide(*QUICK, "--out", "out")
    assert 2 == done.code
    assert "cannot write out/workers.log: Is a directory; give another --out DIR" in done.err


def test_what_a_label_holds_reaches_no_terminal_raw(capsys: pytest.CaptureFixture[str]) -> None:
    label = "candidate\x1b[31m\nerror: forged\u202e seed 7"
    _TrialLines()(
        TrainingTrial(label, {}), Result(1.5, None, 9, 2.0, 0, 0, 0, 0.0, "", 1), kept=True
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()
    assert "candidate\\u001b[31m\\u000aerror: forged\\u202e seed 7: 1.5000 (kept)" in line
