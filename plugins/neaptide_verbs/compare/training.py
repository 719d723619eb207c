"""Train one trial in this process."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from neaptide.config import RunConfig, structure
from neaptide.config.tables import overlay
from neaptide.errors import DataError, DivergedError, RunDirectoryError
from neaptide.hooks.registry import installed_plugins
from neaptide.io.locking import lock
from neaptide.run import assembly
from neaptide.run.trainer import HybridTrainer

from .sides import AVERAGING
from .trials import Result, TrainingTrial, folder_of, read_result, write_result

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def train(trial: TrainingTrial, directory: Path) -> Result:
    """Train `trial` in `directory`, or resume its interrupted run.

    If another comparison trains the same trial at the same time, wait for the result. After a
    signal, save the training and raise Interrupted. The result is an infinite loss if the
    run diverges or if its last validation loss is not finite.
    """
    with _alone(directory):
        done = read_result(directory, trial)
        return _afresh(trial, directory) if done is None else done


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    try:
        file = folder_of(directory, make=True).open(".trial", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        msg = f"cannot write in {directory}: {error.strerror}; give another --out DIR"
        raise RunDirectoryError(msg) from error
    try:
        lock(file, wait=True)  # two comparisons must not train the same trial
        yield
    finally:
        os.close(file)


def _afresh(trial: TrainingTrial, directory: Path) -> Result:
    values = overlay(dict(trial.values), {"run": {"dir": str(directory)}})
    config = structure(values, installed_plugins().usable())
    try:
        with HybridTrainer.from_config(config) as trainer:
            result = _trained(trainer, config, directory)
    except DivergedError:
        result = _diverged(directory)
    write_result(directory, trial, result)
    # A comparison needs only the result; checkpoints of all trials would fill the disk.
    folder_of(directory).remove("checkpoints")
    return result


def _trained(trainer: HybridTrainer, config: RunConfig, directory: Path) -> Result:
    data = assembly.build_data(config, trainer.hooks)
    validation = _repeatable(data.validation)
    summary = trainer.fit(data, resume="auto")
    _check_seen(validation, summary["val_loss"])
    averages = any(AVERAGING in spec.claims for spec in trainer.hooks.specs.values())
    plain = trainer.evaluate(validation, plain=True) if averages else summary["val_loss"]
    seconds, jump_seconds = _times(directory)
    return Result(
        loss=_finite(plain),
        averaged=_finite(summary["val_loss"]) if averages else None,
        updates=summary["steps"],
        seconds=seconds,
        jumps=summary["jumps"],
        refused=_count(directory, "jump.refused"),
        predicted=trainer.state.predicted,
        jump_seconds=jump_seconds,
        digest=summary["digest"],
        threads=torch.get_num_threads(),
    )


def _repeatable(batches: Iterable[Any] | None) -> Iterable[Any]:
    """Return the validation batches.

    DataError if there are none, or if they are an iterator, which allows only one pass.
    """
    wanted = "give a list, or another iterable that starts anew each time"
    if batches is None:
        msg = f"the data has no validation batches to compare losses on; {wanted} @ data.name"
        raise DataError(msg)
    if isinstance(batches, Iterator):
        msg = (
            f"validation batches are evaluated more than once, and this {type(batches).__name__} "
            f"is exhausted after the first pass; {wanted} @ data.name"
        )
        raise DataError(msg)
    return batches


def _check_seen(batches: Iterable[Any], loss: float) -> None:
    """Raise DataError if `loss` is nan because there was no batch."""
    if math.isnan(loss) and not any(True for _ in batches):
        msg = "the validation data is empty: there is no loss to compare @ data.name"
        raise DataError(msg)


def _diverged(directory: Path) -> Result:
    seconds, jump_seconds = _times(directory)
    accepted = _events(directory, "jump.accepted")
    return Result(
        loss=math.inf,
        averaged=math.inf,
        updates=0,
        seconds=seconds,
        jumps=len(accepted),
        refused=_count(directory, "jump.refused"),
        predicted=sum(int(jump["horizon"]) for jump in accepted),
        jump_seconds=jump_seconds,
        digest="",
        threads=torch.get_num_threads(),
    )


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def _times(directory: Path) -> tuple[float, float]:
    """Return the seconds of all steps, and the part of these seconds spent on jumps.

    Accepted and refused jumps both count.
    """
    total = jumps = 0.0
    for row in csv.DictReader(_lines(directory, "steps.csv")):
        if row["was_predicted"] == "true":
            jumps += float(row["seconds"])
        else:
            total += float(row["seconds"])
    return total, jumps + _sum(directory, "jump.refused", "seconds")


def _events(directory: Path, event: str) -> list[dict[str, Any]]:
    lines = _lines(directory, "events.jsonl")
    found = (json.loads(line) for line in lines if f'"{event}"' in line)
    return [entry for entry in found if entry.get("event") == event]


def _lines(directory: Path, name: str) -> Iterator[str]:
    """Yield the lines of a run's file; none if the run had nothing to write into it."""
    try:
        with os.fdopen(folder_of(directory).open(name), encoding="utf-8") as file:
            yield from file
    except FileNotFoundError:
        return
    except OSError as error:
        msg = f"cannot read {directory / name}: {error.strerror}; remove it and repeat the command"
        raise RunDirectoryError(msg) from error


def _count(directory: Path, event: str) -> int:
    return len(_events(directory, event))


def _sum(directory: Path, event: str, key: str) -> float:
    return sum(float(entry[key]) for entry in _events(directory, event))
