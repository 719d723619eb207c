"""Checks the tracking server before training, and opens a run of MLflow at the first step."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import attrs

from neaptide import ConfigError
from neaptide_toolkit.loggers import LoggerPlugin, WrittenPoints, check_installed, settings_of

from .config import MlflowConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlflow import MlflowClient

    from neaptide import Run
    from neaptide_toolkit.loggers import LogSink

_EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"


@attrs.define(eq=False)
class MlflowPlugin(LoggerPlugin[MlflowConfig]):
    """An observer."""

    def __attrs_post_init__(self) -> None:
        """Raise ConfigError if the package mlflow is missing."""
        check_installed("mlflow", "neaptide-mlflow", "mlflow")

    def prepare(self, run: Run) -> Callable[[], LogSink] | None:
        """Find or make the experiment, and return what opens a run of it."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nobody asked for it
        from mlflow import MlflowClient  # noqa: PLC0415 - it may be missing, and takes a second

        try:
            client = MlflowClient(self.config.tracking_uri)
            name = self.config.experiment or os.environ.get(_EXPERIMENT) or "neaptide"
            experiment = _experiment(client, name)
        except ConfigError:
            raise
        except Exception as error:  # servers, databases and their drivers raise anything
            reason = " ".join(str(error).split())[:500]
            where = self.config.tracking_uri or "the default store"
            msg = f"MLflow cannot use {where}: {reason} @ plugins.mlflow.tracking_uri"
            raise ConfigError(msg) from error

        def opened() -> LogSink:
            from .sink import MlflowSink  # noqa: PLC0415 - as above

            name = self.config.name or (run.directory.name if run.directory is not None else None)
            written = WrittenPoints(run.plugin_folder("mlflow"), run.log)
            sink = MlflowSink(client, written, self.config.flush_seconds)
            kept = sink.start(experiment, name, self.config.tags, settings_of(run))
            if kept:
                run.log.warning("mlflow.params_kept", changed=", ".join(kept))
            return sink

        return opened


def _experiment(client: MlflowClient, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is None:
        return str(client.create_experiment(name))
    if found.lifecycle_stage != "active":
        msg = f"experiment {name} is deleted; restore it, or set plugins.mlflow.experiment"
        raise ConfigError(msg + " @ plugins.mlflow.experiment")
    return str(found.experiment_id)
