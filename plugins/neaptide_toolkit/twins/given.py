"""What a trainer was given: enough to train it anew, with its plugins and without."""

from __future__ import annotations

import copy
from itertools import islice
from typing import TYPE_CHECKING, Any

from neaptide import HybridTrainer
from neaptide.api import rng
from neaptide.errors import DataError, ModelError

from .apart import check_apart
from .optimizer import OptimizerOutline
from .outline import WAY_OUT, Outline

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import torch
    from torch import nn

    from neaptide.api.task import LossFn
    from neaptide.config import RunConfig
    from neaptide.plugin import PluginSpec
    from neaptide_toolkit.verifying import Verification
    from neaptide_toolkit.verifying.runs import TrainerMaker


class Given:
    """The arguments of a trainer, without the values of its model.

    Args:
        config: the configuration, with the settings of all plugins.
        ordered: the manifests of its plugins, in resolved order.
        model: the model before plugins change it; None if the configuration builds it.
        optimizer: its optimizer; None if the configuration builds it.
        loss_fn: as the trainer takes it.
    """

    def __init__(
        self,
        config: RunConfig,
        ordered: Sequence[PluginSpec],
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        loss_fn: LossFn | None = None,
    ) -> None:
        self._config, self._ordered, self._loss_fn = config, ordered, loss_fn
        self._model = None if model is None else Outline(model)
        self._optimizer = (
            None
            if self._model is None or optimizer is None
            else OptimizerOutline(optimizer, self._model)
        )

    def verify(
        self,
        trainer: HybridTrainer,
        batches: Iterable[Any] | None = None,
        *,
        steps: int = 8,
        against: RunConfig | Mapping[str, Any] | str | Path | None = None,
        memory: bool = True,
    ) -> Verification:
        """Train copies with all plugins and without, compare, and name the guilty.

        Args:
            trainer: the trainer that was given all this. It is read and not changed.
            batches: the first `steps` of them are trained on. None: those of the configuration.
            steps: updates of each run, at least 2.
            against: another configuration of the same training, instead of one without plugins.
            memory: whether peak memory is measured and planned, too, if the configuration builds
                the model.

        Raises:
            ConfigError: there is nothing to compare.
            DataError: there is no batch.
            ModelError: a copy cannot be made, or the run without plugins fails.
            NeaptideError: a plugin refuses the copy.
        """
        with rng.preserved():
            return self._verified(trainer, batches, steps, against, memory=memory)

    def _verified(
        self,
        trainer: HybridTrainer,
        batches: Iterable[Any] | None,
        steps: int,
        against: RunConfig | Mapping[str, Any] | str | Path | None,
        *,
        memory: bool,
    ) -> Verification:
        from neaptide_toolkit.verifying import verify  # noqa: PLC0415 - few trainers are verified
        from neaptide_toolkit.verifying.runs import from_config  # noqa: PLC0415 - as above

        taken = None if batches is None else list(islice(batches, steps))
        if taken == [] or (taken is None and self._model is not None):
            msg = "there is no batch to verify with; pass some, such as a list of 8"
            raise DataError(msg)
        made = from_config
        if self._model is not None and taken:
            made = self._made_anew(trainer, taken[0])

        def with_batches(config: RunConfig, specs: list[PluginSpec]) -> tuple[HybridTrainer, Any]:
            return made(config, specs)[0], copy.deepcopy(taken)

        return verify(
            self._config,
            steps=steps,
            plugins=self._ordered,
            against=against,
            make=made if taken is None else with_batches,
            memory=memory,
        )

    def _made_anew(self, trainer: HybridTrainer, batch: Any) -> TrainerMaker:
        outline, optimizer = self._model, self._optimizer
        assert outline is not None
        values = _values(trainer, outline.shapes())
        if self._loss_fn is not None:
            loss_fn = outline.copied(self._loss_fn, {}, "loss_fn")
            check_apart(outline, outline.made(values), loss_fn, copy.deepcopy(batch))

        def make(config: RunConfig, specs: list[PluginSpec]) -> tuple[HybridTrainer, Any]:
            model = outline.made(values)
            own = None if optimizer is None else optimizer.made(model)
            loss_fn = outline.copied(self._loss_fn, {}, "loss_fn")
            return HybridTrainer(model, own, loss_fn=loss_fn, config=config, plugins=specs), ()

        return make


def _values(trainer: HybridTrainer, shapes: Mapping[str, torch.Size]) -> dict[str, torch.Tensor]:
    """Return copies of the present weights and buffers, by their first names."""
    store = trainer.store
    store.drain()
    values = {
        name: tensor.detach().clone()
        for name, tensor in trainer.model.named_buffers(remove_duplicate=False)
    }
    for span in store.spans():
        with store.loan(span, "read") as weight:
            copied = weight.detach().to("cpu", copy=True)
        values |= dict.fromkeys((span.name, *span.tied), copied)
    for name, shape in shapes.items():
        if name not in values or values[name].shape != shape:
            msg = f"a plugin has replaced {name!r}, so the plain model is gone; {WAY_OUT}"
            raise ModelError(msg)
    return values
