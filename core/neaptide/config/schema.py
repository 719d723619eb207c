"""The sections of a configuration. Each field has a default, a check and one line of help."""

# ruff: noqa: RUF009 - `field` is `attrs.field` with one line of help

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import attrs
from attrs.validators import and_, ge, gt, in_, instance_of, le, lt, optional

from neaptide.config.fields import ConfigSection, check_path, field
from neaptide.renamed import missing_in

if TYPE_CHECKING:
    from neaptide.config.fields import Validator

VERSIONS = (1,)
"""The versions of the configuration format that this version of Neaptide reads."""

_BUILT = {"pattern": "^([^:]+:[\\s\\S]+)?$"}
_DEVICE = re.compile(r"auto|cpu(:0)?|mps|(cuda|xpu)(:[0-9]+)?")


def _at_least(least: int) -> Validator:
    return and_(instance_of(int), ge(least))


def _built(_: object, attribute: attrs.Attribute[str], value: str) -> None:
    first, _, second = value.partition(":")
    if value and not (first and second):
        msg = (
            f"{attribute.name!r} must be 'scheme:name' of a plugin, such as 'builtin:…', or "
            f"'package.module:factory' (got {value!r})"
        )
        raise ValueError(msg)


def _device(_: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not _DEVICE.fullmatch(value):
        msg = f"{attribute.name!r} must be auto, cpu, cuda[:N], xpu[:N] or mps (got {value!r})"
        raise ValueError(msg)


def _without_steps(train: Any, _: object, epochs: int | None) -> None:
    if epochs is not None and train.steps != attrs.fields(TrainSection).steps.default:
        msg = f"'epochs' and 'steps' ({train.steps}) are both set; remove one (got {epochs})"
        raise ValueError(msg)


_EMPTY: Any = attrs.Factory(dict)
_flag = instance_of(bool)
_string = instance_of(str)
_number: Validator = instance_of((int, float))
_positive = and_(_number, gt(0), lt(math.inf))
_table: Validator = instance_of(Mapping)


@attrs.frozen(kw_only=True, repr=False)
class RunSection(ConfigSection):
    """Where the run writes, how often it saves, and what it prints."""

    dir: str | None = field(
        None,
        validator=optional(and_(_string, check_path)),
        schema={"minLength": 1},
        help="run directory; by default `runs/` plus the name of the first configuration file",
    )
    checkpoint_dir: str | None = field(
        None,
        validator=optional(and_(_string, check_path)),
        schema={"minLength": 1},
        help="directory of the checkpoints, such as on another disk; by default `checkpoints/` in "
        "the run directory",
    )
    checkpoint_every: int = field(
        0, validator=_at_least(0), help="updates between saves; 0: save by `checkpoint_minutes`"
    )
    checkpoint_minutes: float = field(
        15.0,
        validator=and_(_number, ge(0), lt(math.inf)),
        help="minutes between saves, or 20 times what the last save took, if this is longer; "
        "0: only at the end and on signals",
    )
    keep: int = field(3, validator=_at_least(0), help="newest checkpoints to keep; 0: keep all")
    frozen: Literal["auto", "copy", "reference"] = field(
        "auto",
        validator=in_(("auto", "copy", "reference")),
        help="weights that are not trained: `copy` saves them in each checkpoint; `reference` "
        "saves them once, beside the checkpoints; `auto`: reference if they are more than half",
    )
    progress: Literal["auto", "plain", "quiet"] = field(
        "auto",
        validator=in_(("auto", "plain", "quiet")),
        help="`auto`: live line or bar if possible; `plain`: log lines; `quiet`: no progress",
    )
    log: Literal["console", "json"] = field(
        "console",
        validator=in_(("console", "json")),
        help="`console`: warnings as text; `json`: every event as a line of JSON; both on stderr",
    )
    log_every: int = field(10, validator=_at_least(1), help="updates between two log lines")
    plan: Literal["auto", "always", "off"] = field(
        "auto",
        validator=in_(("auto", "always", "off")),
        help="when `neaptide run` plans and refuses what does not fit; `auto`: for large models",
    )


@attrs.frozen(kw_only=True, repr=False)
class ModelSection(ConfigSection):
    """The model that the command line builds and trains."""

    name: str = field(
        "",
        validator=and_(_string, _built),
        schema=_BUILT,
        help="for instance `builtin:byte-gpt`, or `package.module:factory`",
    )
    options: Mapping[str, Any] = field(_EMPTY, validator=_table, help="arguments of the builder")


@attrs.frozen(kw_only=True, repr=False)
class DataSection(ConfigSection):
    """The data that the command line builds and trains on."""

    name: str = field(
        "",
        validator=and_(_string, _built),
        schema=_BUILT,
        help="for instance `builtin:python-stdlib`, or `package.module:factory`",
    )
    options: Mapping[str, Any] = field(_EMPTY, validator=_table, help="arguments of the builder")


@attrs.frozen(kw_only=True, repr=False)
class TrainSection(ConfigSection):
    """How long to train, on which device, and when to stop."""

    steps: int = field(1000, validator=_at_least(1), help="updates in the whole run")
    epochs: int | None = field(
        None, validator=and_(optional(_at_least(1)), _without_steps), help="passes over the data"
    )
    batch_size: int = field(
        16, validator=_at_least(1), help="samples per update, in all micro-batches together"
    )
    device: str = field(
        "auto",
        validator=and_(_string, _device),
        schema={"pattern": f"^({_DEVICE.pattern})$"},
        help="`cpu`, `cuda`, `cuda:N`, `xpu`, `xpu:N`, `mps`; `auto`: the accelerator or the CPU",
    )
    threads: int | None = field(
        None, validator=optional(_at_least(1)), help="CPU threads; none: torch's own number"
    )
    clip_norm: float | None = field(
        None, validator=optional(_positive), help="largest gradient norm; none: no clipping"
    )
    grad_norm: bool = field(
        default=False, validator=_flag, help="measure each gradient norm, also of a small model"
    )
    check_finite: bool = field(
        default=True, validator=_flag, help="skip an update whose loss or gradients are not finite"
    )
    max_skipped: int = field(
        20,
        validator=_at_least(0),
        help="largest number of updates skipped in a row; one more ends the run",
    )
    deterministic: bool = field(
        default=False, validator=_flag, help="use only deterministic algorithms of torch"
    )


@attrs.frozen(kw_only=True, repr=False)
class OptimizerSection(ConfigSection):
    """The optimizer and its learning rate."""

    name: str = field(
        "adamw", validator=_string, help="from `torch.optim` or a plugin, or `package.module:Class`"
    )
    lr: float = field(1e-3, validator=_positive, help="peak learning rate")
    options: Mapping[str, Any] = field(
        _EMPTY,
        validator=_table,
        help="other arguments of the optimizer, such as `weight_decay`; Adam and AdamW are fused "
        "where PyTorch can, unless `fused = false`",
    )


@attrs.frozen(kw_only=True, repr=False)
class EvalSection(ConfigSection):
    """When to evaluate, and on how many batches."""

    every: int = field(0, validator=_at_least(0), help="updates between evaluations; 0: at the end")
    batches: int = field(20, validator=_at_least(1), help="validation batches per evaluation")


@attrs.frozen(kw_only=True, repr=False)
class WarmupSection(ConfigSection):
    """Ordinary updates before the first Full phase."""

    steps: int | None = field(
        None,
        validator=optional(_at_least(0)),
        help="updates in Warmup; by default 100 with a predictor, else 0",
    )


@attrs.frozen(kw_only=True, repr=False)
class FullSection(ConfigSection):
    """Ordinary updates from which a predictor learns."""

    steps: int = field(200, validator=_at_least(1), help="updates in one Full phase")


@attrs.frozen(kw_only=True, repr=False)
class PredictSection(ConfigSection):
    """One predicted update. Forward passes judge this update before the run continues."""

    max_horizon: int = field(
        50,
        validator=_at_least(1),
        help="largest number of ordinary updates that one prediction replaces",
    )
    confidence: float | None = field(
        None,
        validator=optional(and_(_number, gt(0), le(1))),
        help="lowest confidence for a prediction, in (0, 1]; needs a plugin with a dynamics model",
    )
    correction_interval: int = field(
        15,
        validator=_at_least(1),
        help="a Correct phase follows when jumps have replaced at least this many updates",
    )
    rise: float = field(
        0.02,
        validator=and_(_number, ge(0), lt(math.inf)),
        help="largest relative rise of the loss with which a prediction is accepted",
    )
    halvings: int = field(
        2, validator=_at_least(0), help="how often a rejected prediction is halved and tried again"
    )


@attrs.frozen(kw_only=True, repr=False)
class CorrectSection(ConfigSection):
    """Ordinary updates that correct the weights after predictions."""

    steps: int = field(25, validator=_at_least(0), help="updates in one Correct phase")


@attrs.frozen(kw_only=True, repr=False)
class PhasesSection(ConfigSection):
    """The lengths of the four phases: Warmup, then Full, Predict and Correct in turn."""

    warmup: WarmupSection = field(WarmupSection, help="ordinary updates at the start")
    full: FullSection = field(FullSection, help="ordinary updates that a predictor observes")
    predict: PredictSection = field(PredictSection, help="predicted updates")
    correct: CorrectSection = field(CorrectSection, help="ordinary updates after predictions")

    def warmup_updates(self, *, predicts: bool) -> int:
        """Return the length of Warmup; `predicts` says whether a predictor is enabled."""
        default = 100 if predicts else 0
        return default if self.warmup.steps is None else self.warmup.steps


@attrs.frozen(kw_only=True, repr=False)
class RunConfig(ConfigSection):
    """The complete configuration; runs with equal configurations make the same computation."""

    version: int = field(1, validator=in_(VERSIONS), help="version of the configuration format")
    seed: int = field(
        0, validator=and_(instance_of(int), ge(0), lt(2**63)), help="seed of all random generators"
    )
    plugins_from: Literal["listed", "installed"] = field(
        "listed",
        validator=in_(("listed", "installed")),
        help="which plugins run: those with a table under `[plugins]`, or every installed one",
    )
    run: RunSection = field(RunSection, help="run directory, saving and output")
    model: ModelSection = field(ModelSection, help="the model to train")
    data: DataSection = field(DataSection, help="the data to train on")
    train: TrainSection = field(TrainSection, help="length, device and limits")
    optimizer: OptimizerSection = field(OptimizerSection, help="optimizer and learning rate")
    eval: EvalSection = field(EvalSection, help="when and how much to evaluate")
    phases: PhasesSection = field(PhasesSection, help="lengths of the four phases")
    plugins: Mapping[str, Any] = field(
        _EMPTY,
        validator=_table,
        help="one table per enabled plugin; plugins run in the order of these tables, except where "
        "a plugin requires another order",
    )


if not TYPE_CHECKING:  # for a type checker it would hide missing names
    __getattr__ = missing_in(__name__)
