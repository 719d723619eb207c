"""Settings and manifest of `mlflow`."""

from __future__ import annotations

import attrs
from attrs.validators import ge, min_len, optional

from neaptide import PluginSpec, field


@attrs.frozen(kw_only=True)
class MlflowConfig:
    """`[plugins.mlflow]`."""

    tracking_uri: str | None = field(
        None,
        validator=optional(min_len(1)),
        help="server or database, such as `http://host:5000` or `sqlite:///mlflow.db`; by default "
        "`MLFLOW_TRACKING_URI`, else MLflow's own default",
    )
    experiment: str | None = field(
        None,
        validator=optional(min_len(1)),
        help="experiment, made if it does not exist; by default `MLFLOW_EXPERIMENT_NAME`, else "
        "`neaptide`",
    )
    name: str | None = field(
        None,
        validator=optional(min_len(1)),
        help="name of the run; by default the name of the run directory",
    )
    tags: dict[str, str] = field({}, help="tags of the run")
    every: int = field(
        1, validator=ge(1), help="updates between two points of loss, norm, time and memory"
    )
    flush_seconds: float = field(
        5.0,
        validator=ge(0.0),
        help="time, in seconds, after which the next record sends all points",
    )


SPEC = PluginSpec(
    name="mlflow",
    load="neaptide_mlflow.plugin:MlflowPlugin",
    config=MlflowConfig,
    summary="Losses by phase, rates, memory, jumps, plugins' metrics and settings in MLflow.",
    observer=True,
    numerics="exact",
)
