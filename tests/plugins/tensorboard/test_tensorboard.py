"""What TensorBoard reads of a run, and what a failing event file costs: the events alone."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from support import CYCLE, environment, tiny_trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from neaptide import ConfigError, Interrupted
from neaptide.hooks.registry import installed_plugins
from neaptide.io.folder import Folder
from neaptide_plugins.tensorboard.event_file import EventFile
from neaptide_toolkit.testing import check_plugin
from neaptide_verbs.convert.foreign import translate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PREDICTOR = {"predictor-drift": {"min_window": 4, "sample_every": 1}}


def table(directory: Path, steps: int = 12, **settings: Any) -> dict[str, Any]:
    """Return the config of a run through all phases that is shown in TensorBoard."""
    return {
        "run": {"dir": str(directory), "log_every": 2},
        "train": {"steps": steps, "grad_norm": True},
        "eval": {"every": 5},
        "phases": CYCLE,
        "plugins": {**PREDICTOR, "ema": {}, "tensorboard": settings},
    }


def fit(config: dict[str, Any], observe: Any = None, **given: Any) -> dict[str, Any]:
    """Run `config` and return the summary."""
    trainer, batches = tiny_trainer(config)
    with trainer:
        return trainer.fit(batches, validation=batches[10:12], observe=observe, **given)


def curves(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the points TensorBoard shows, by tag."""
    shown = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
    shown.Reload()
    return {
        tag: [(point.step, point.value) for point in shown.Scalars(tag)]
        for tag in shown.Tags()["scalars"]
    }


def phases(directory: Path) -> list[tuple[int, str]]:
    """Return the phases TensorBoard shows as text."""
    shown = EventAccumulator(str(directory), size_guidance={"tensors": 0})
    shown.Reload()
    return [
        (event.step, event.tensor_proto.string_val[0].decode()) for event in shown.Tensors("phase")
    ]


def single(value: float) -> float:
    """Return a number as an event holds it."""
    import numpy as np

    return float(np.float32(value))


def events(directory: Path, name: str) -> list[dict[str, Any]]:
    lines = (directory / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line["event"] == name]


def test_everything_recorded_is_shown(tmp_path: Path) -> None:
    summary = fit(table(tmp_path / "run"))
    shown = curves(tmp_path / "run/plugins/tensorboard")
    rows = (tmp_path / "run/steps.csv").read_text(encoding="utf-8").splitlines()
    columns = rows[0].split(",")
    records = [dict(zip(columns, row.split(","), strict=True)) for row in rows[1:]]
    for phase in ("warmup", "full", "correct", "predict"):
        assert [
            (int(record["step"]), single(float(record["loss"])))
            for record in records
            if record["phase"] == phase
        ] == shown[f"loss/{phase}"]
    for tag, column in (("train/loss", "loss"), ("train/grad_norm", "grad_norm")):
        assert [
            (int(record["step"]), single(float(record[column])))
            for record in records
            if record["was_predicted"] == "false"
        ] == shown[tag]
    assert [5, 10, 12] == [step for step, _ in shown["eval/loss"]]
    assert single(summary["val_loss"]) == shown["eval/loss"][-1][1]
    assert {2, 4, 6, 8, 10, 12} <= {step for step, _ in shown["train/lr"]}
    assert 1 == len({value for _, value in shown["train/lr"]})
    assert summary["jumps"] == len(shown["jump/accepted"])
    assert list(range(1, 13)) == [step for step, _ in shown["memory/host_bytes"]]
    assert any(tag.startswith("predictor-drift/") for tag in shown)
    texts = phases(tmp_path / "run/plugins/tensorboard")
    assert [(1, "warmup"), (3, "full"), (7, "predict")] == texts[:3]


def test_every_so_many_updates_a_point(tmp_path: Path) -> None:
    fit(table(tmp_path / "run", log_dir=str(tmp_path / "logs"), every=5))
    shown = curves(tmp_path / "logs")
    assert [5, 10] == [step for step, _ in shown["train/loss"]]
    assert shown["loss/predict"]
    assert not (tmp_path / "run/plugins/tensorboard").exists()


def test_without_a_run_directory_a_log_dir_is_enough(tmp_path: Path) -> None:
    config = {"train": {"steps": 5}, "plugins": {"tensorboard": {"log_dir": str(tmp_path)}}}
    trainer, batches = tiny_trainer(config)
    with trainer:
        for batch in batches[:5]:
            trainer.step(batch)
    shown = curves(tmp_path)
    assert [1, 2, 3, 4, 5] == [step for step, _ in shown["train/loss"]]
    assert "memory/host_bytes" not in shown


def test_with_nowhere_to_write_it_says_so(caplog: pytest.LogCaptureFixture) -> None:
    trainer, batches = tiny_trainer({"plugins": {"tensorboard": {}}})
    with trainer:
        trainer.step(batches[0])
    assert 1 == caplog.text.count("tensorboard.nothing_written")
    assert "set run.dir or plugins.tensorboard.log_dir" in caplog.text


def test_a_resumed_run_goes_on_in_the_same_curves(tmp_path: Path) -> None:
    expected = fit(table(tmp_path / "whole"))
    config = table(tmp_path / "run", flush_seconds=0.0)
    config["run"]["checkpoint_every"] = 4

    class KilledError(Exception):
        pass

    def killed(result: Any, state: Any) -> None:
        if state.step == 7:
            raise KilledError

    with pytest.raises(KilledError):
        fit(config, killed)
    before = curves(tmp_path / "run/plugins/tensorboard")["train/loss"]
    assert [1, 2, 3, 4, 5, 6, 7] == [step for step, _ in before]
    assert expected["digest"] == fit(config, resume="auto")["digest"]
    assert 2 == len(list((tmp_path / "run/plugins/tensorboard").iterdir()))
    whole, resumed = (curves(tmp_path / name / "plugins/tensorboard") for name in ("whole", "run"))
    for tag in ("train/loss", "eval/loss", "loss/predict", "loss/correct", "jump/accepted"):
        assert whole[tag] == resumed[tag], tag


def test_a_new_run_in_an_old_log_dir_replaces_its_curves(tmp_path: Path) -> None:
    for name, steps in (("first", 12), ("second", 4)):
        fit(table(tmp_path / name, steps, log_dir=str(tmp_path / "logs")))
    shown = curves(tmp_path / "logs")
    assert [1, 2, 3, 4] == [step for step, _ in shown["train/loss"]]


def test_a_signal_leaves_every_event_in_the_file(tmp_path: Path) -> None:
    def observe(result: Any, state: Any) -> None:
        if state.step == 6:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted):
        fit(table(tmp_path / "run", flush_seconds=3600.0), observe)
    shown = curves(tmp_path / "run/plugins/tensorboard")
    assert [1, 2, 3, 4, 5, 6] == [step for step, _ in shown["train/loss"]]


# --- failures -------------------------------------------------------------------------------------


def removed(directory: Path) -> None:
    shutil.rmtree(directory)


def made_a_file(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.write_text("in the way", encoding="utf-8")


@pytest.mark.parametrize("harm", [removed, made_a_file])
def test_a_directory_that_goes_away_costs_the_events_alone(
    tmp_path: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "run/plugins/tensorboard"

    def observe(result: Any, state: Any) -> None:
        if state.step == 5:
            harm(directory)

    expected = fit(table(tmp_path / "whole"))
    caplog.clear()
    summary = fit(table(tmp_path / "run", flush_seconds=0.0), observe)
    assert expected["digest"] == summary["digest"]
    (event,) = events(tmp_path / "run", "plugin.quarantined")
    assert ("tensorboard", "warning") == (event["plugin"], event["level"])
    assert 1 == caplog.text.count("plugin.quarantined")


FULL_DISK = """
import resource, signal, sys
from support import tiny_trainer

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
config = {"train": {"steps": 12}}
if sys.argv[1:]:
    config["plugins"] = {"tensorboard": {"log_dir": sys.argv[1], "flush_seconds": 0.0}}
trainer, batches = tiny_trainer(config)

def observe(result, state):
    if state.step == 6:
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, resource.RLIM_INFINITY))

with trainer:
    print(trainer.fit(batches, observe=observe)["digest"])
"""


def test_a_full_disk_costs_the_events_that_came_after(tmp_path: Path) -> None:
    assert resource.RLIM_INFINITY == resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    done = [
        subprocess.run(
            [sys.executable, "-c", FULL_DISK, *arguments],
            env=environment(OMP_NUM_THREADS="1"),
            capture_output=True,
            text=True,
            check=False,
        )
        for arguments in ([], [str(tmp_path / "logs")])
    ]
    assert [0, 0] == [one.returncode for one in done], done[1].stderr
    # A digest holds the state of every plugin by name, so these two are not compared.
    assert 1 == done[1].stderr.count("plugin.quarantined"), done[1].stderr
    assert "File too large" in done[1].stderr or "No space left" in done[1].stderr
    shown = curves(tmp_path / "logs")["train/loss"]
    assert [step + 1 for step in range(len(shown))] == [step for step, _ in shown]


def test_what_a_full_disk_cuts_short_is_taken_back(tmp_path: Path) -> None:
    file = EventFile(Folder(tmp_path), 3600.0)
    file.numbers(1, {"loss": 1.0})
    file.flush()
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    soft = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, soft[1]))
        file.numbers(2, {"loss": 2.0})
        with pytest.raises(OSError, match="No space left"):
            file.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, soft)
        signal.signal(signal.SIGXFSZ, ignored)
    assert whole == path.read_bytes()
    file.numbers(3, {"loss": 3.0})
    file.flush()
    file.close()
    assert [(1, 1.0), (3, 3.0)] == curves(tmp_path)["loss"]


WITHOUT = """
import sys
sys.modules["tensorboard"] = None
from neaptide.cli import main
sys.exit(main(["run", sys.argv[1], "--set", f"run.dir={sys.argv[2]}"]))
"""


def test_without_the_package_the_run_ends_before_it_begins(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    text = '[model]\nname="builtin:mlp"\n[data]\nname="builtin:digits"\n[plugins.tensorboard]\n'
    config.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(config), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
    )
    said = 'tensorboard is not installed: pip install "neaptide[tensorboard]"'
    assert (2, f"error: {said} @ plugins.tensorboard") == (
        done.returncode,
        done.stderr.splitlines()[0],
    )
    assert not (tmp_path / "run/steps.csv").exists()


@pytest.mark.parametrize("place", ["file", "file/logs"])
def test_a_log_dir_nobody_can_write_to_ends_the_run_before_it_begins(
    tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        tiny_trainer(table(tmp_path / "run", log_dir=str(tmp_path / place)))
    assert str(caught.value).startswith(f"cannot write in {tmp_path / place}: ")
    assert str(caught.value).endswith(" @ plugins.tensorboard.log_dir")


def test_it_keeps_the_contract(tmp_path: Path) -> None:
    check_plugin("tensorboard", {"log_dir": str(tmp_path / "logs")})
    assert len(list((tmp_path / "logs").iterdir())) > 1


def test_numbers_that_are_not_finite_are_shown(tmp_path: Path) -> None:
    file = EventFile(Folder(tmp_path), 0.0)
    for step, value in enumerate((float("inf"), 1.0, float("nan"))):
        file.numbers(step, {"loss": value})
    file.close()
    assert ["inf", "1.0", "nan"] == [str(value) for _, value in curves(tmp_path)["loss"]]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"enabled": True}, {}),
        ({"enabled": True, "job_name": "job"}, {}),
        ({"enabled": True, "output_path": "logs"}, {"log_dir": "logs"}),
        ({"enabled": True, "output_path": "logs/", "job_name": "job"}, {"log_dir": "logs/job"}),
        ({"enabled": False, "output_path": "logs"}, None),
        ({"job_name": "job"}, None),
    ],
)
def test_deepspeeds_settings_are_converted(
    settings: dict[str, Any], expected: dict[str, Any] | None
) -> None:
    installed = installed_plugins()
    table = translate("deepspeed", {"tensorboard": settings}, installed).table
    assert expected == table.get("plugins", {}).get("tensorboard")


def test_settings_are_checked() -> None:
    from neaptide_plugins.tensorboard.config import TensorboardConfig

    assert 1 == TensorboardConfig().every
    for wrong in ({"every": 0}, {"flush_seconds": -1.0}, {"log_dir": ""}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            attrs.evolve(TensorboardConfig(), **wrong)
