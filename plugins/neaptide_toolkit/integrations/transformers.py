"""`NeaptideTrainer`: a transformers Trainer whose steps are those of a HybridTrainer.

    trainer = NeaptideTrainer(model, args, train_dataset=data, neaptide_plugins=["layer-streaming"])
    trainer.train()

Callbacks, clipping, schedules, accumulation and checkpoints stay those of Trainer.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from transformers import Trainer

from neaptide import RunConfig
from neaptide.hooks.enabling import configured

from .arguments import check_arguments
from .optimizers import SteppedOptimizer
from .pieces import SteppedRun
from .refusals import check_plugins, check_settings, is_placed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import torch

    from neaptide import PluginSpec

FOLDER = "neaptide"
"""The Neaptide checkpoint inside each checkpoint of Trainer."""
_INSTEAD = {
    "autocast": "set bf16=True in TrainingArguments",
    "best-checkpoint": "set load_best_model_at_end=True in TrainingArguments",
    "gradient.accumulation": "set gradient_accumulation_steps in TrainingArguments",
    "learning-rate": "set lr_scheduler_type in TrainingArguments",
    "lora": "wrap the model with peft.get_peft_model",
    "metrics": "pass compute_metrics to the trainer",
}
"""Names or claims of plugins, and what Trainer has in their place."""

_Base: Any = object  # for a type checker, which does not see the trainer behind the mixin


class NeaptideMixin(_Base):  # type: ignore[misc]
    """Put before Trainer or a subclass of it: `class Mine(NeaptideMixin, SFTTrainer)`.

    Args:
        neaptide_config: a TOML, YAML or JSON file, a mapping or a RunConfig, as for HybridTrainer.
        neaptide_plugins: names of installed plugins, or manifests, in addition to the config's.

    All other arguments are Trainer's. While `train()` runs, plugins may hold the weights elsewhere;
    afterwards the model is as Trainer leaves it.

    Raises:
        ConfigError: a plugin or a setting contradicts Trainer's, or Trainer uses something that is
            not supported: several processes, DeepSpeed, FSDP, fp16, torch.compile.
    """

    _pieces: SteppedRun | None = None
    _over = True
    """Whether no training runs, or its run has ended."""

    def __init__(
        self,
        *args: Any,
        neaptide_config: RunConfig | Mapping[str, Any] | str | Path | None = None,
        neaptide_plugins: Iterable[str | PluginSpec] = (),
        **kwargs: Any,
    ) -> None:
        config, ordered = configured(neaptide_config, neaptide_plugins)
        check_settings(config)
        check_plugins(ordered, _INSTEAD)
        self._neaptide_config, self._neaptide_plugins = config, ordered
        self._placed = is_placed(ordered)
        super().__init__(*args, **kwargs)
        check_arguments(self.args, self.accelerator, ordered)
        if self._placed:
            device = attrs.evolve(config.train, device=str(self.args.device))
            self._neaptide_config = attrs.evolve(config, train=device)
        self._clip_theirs = self.accelerator.clip_grad_norm_
        self.accelerator.clip_grad_norm_ = self._clip

    def _move_model_to_device(self, model: Any, device: torch.device) -> None:
        if not self._placed:
            super()._move_model_to_device(model, device)

    # -- training ---------------------------------------------------------------------------------

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        check_arguments(self.args, self.accelerator, self._neaptide_plugins)
        self._over = False
        with self._left_in_place():
            try:
                result = super()._inner_training_loop(*args, **kwargs)
            except BaseException as error:
                self._end(error)
                raise
        self._end()
        return result

    @contextmanager
    def _left_in_place(self) -> Iterator[None]:
        """Keep accelerate from moving a model that a plugin moves."""
        placing = self.accelerator.device_placement
        self.accelerator.device_placement = placing and not self._placed
        try:
            yield
        finally:
            self.accelerator.device_placement = placing

    def _begin(self) -> SteppedRun:
        """Return the run; begin it if this is the first use in this training."""
        if self._pieces is None:
            real = self.optimizer.optimizer
            self._pieces = SteppedRun(
                self.model, real, self._neaptide_config, self._neaptide_plugins
            )
            self.optimizer.optimizer = SteppedOptimizer(real, self._pieces, self._note_skipped)
        return self._pieces

    def _note_skipped(self, skipped: bool) -> None:  # noqa: FBT001 - a callback
        self.optimizer._is_overflow = skipped  # noqa: SLF001 - so Trainer leaves the schedule

    def _end(self, error: BaseException | None = None) -> None:
        pieces, self._pieces, self._over = self._pieces, None, True
        stepped = getattr(self.optimizer, "optimizer", None)
        if isinstance(stepped, SteppedOptimizer):
            self.optimizer.optimizer = stepped.real
        if pieces is not None:
            pieces.close(error)

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Make Trainer's own step, but run its backward in a HybridTrainer's step."""
        returned: list[torch.Tensor] = []

        def compute() -> torch.Tensor:
            if not model.training:
                return self._probed(model, inputs)
            with _captured(self.accelerator) as losses:
                returned.append(
                    super(NeaptideMixin, self).training_step(model, inputs, *args, **kwargs)
                )
            (loss,) = losses
            return loss

        self._begin().micro_batch(inputs, compute)
        return returned[-1]

    def _probed(self, model: Any, inputs: Any) -> torch.Tensor:
        """Return the loss before or after a jump, and leave what TRL's trainers count as it was."""
        counted = copy.deepcopy(getattr(self, "_metrics", None))
        with self.compute_loss_context_manager():
            loss: torch.Tensor = self.compute_loss(model, self._prepare_inputs(inputs))
        if counted is not None:
            self._metrics = counted
        return loss

    def _clip(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        """Clip as accelerate does, also gradients that are not in `parameters`."""
        if self._pieces is None:
            return self._clip_theirs(parameters, max_norm, norm_type)
        if norm_type != 2:  # noqa: PLR2004 - the Euclidean norm
            msg = f"norm_type must be 2 in a NeaptideTrainer (got {norm_type})"
            raise ValueError(msg)
        del parameters  # those of the model
        return self._pieces.clip(float(max_norm))

    # -- evaluation -------------------------------------------------------------------------------

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate inside the plugins' middleware; outside of a training, only place the model."""
        if self._over and (not self._placed or self._pieces is not None):
            return super().evaluation_loop(*args, **kwargs)
        pieces = self._placing_alone() if self._over else self._begin()
        try:
            with self._left_in_place():
                return pieces.evaluation(
                    lambda: super(NeaptideMixin, self).evaluation_loop(*args, **kwargs)
                )
        finally:
            if self._over:
                self._pieces = None
                pieces.close()

    def _placing_alone(self) -> SteppedRun:
        """Return a run, without a directory, of the plugins that place the model."""
        ordered = [spec for spec in self._neaptide_plugins if is_placed([spec])]
        config = self._neaptide_config
        plugins = {spec.name: config.plugins[spec.name] for spec in ordered}
        alone = attrs.evolve(config, run=RunConfig().run, plugins=plugins)
        self._pieces = SteppedRun(self.model, None, alone, ordered)
        return self._pieces

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate one batch inside the plugins' middleware."""
        if self._pieces is None:
            return super().prediction_step(model, inputs, *args, **kwargs)
        return self._pieces.evaluated(
            inputs,
            lambda: super(NeaptideMixin, self).prediction_step(model, inputs, *args, **kwargs),
            lambda result: result[0],
        )

    # -- checkpoints ------------------------------------------------------------------------------

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save the newest weights, wherever the plugins hold them."""
        if self._pieces is None:
            super().save_model(*args, **kwargs)
            return
        with self._pieces.settled():
            super().save_model(*args, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        pieces = self._begin()
        with self.optimizer.optimizer.lent():
            super()._save_optimizer_and_scheduler(output_dir)
        pieces.hybrid.save(Path(output_dir) / FOLDER)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        pieces = self._begin()
        super()._load_optimizer_and_scheduler(checkpoint)
        if (Path(checkpoint) / FOLDER).is_dir():  # a plain Trainer saves none
            pieces.load(Path(checkpoint) / FOLDER)

    def _load_best_model(self) -> None:
        self._end()  # the weights are loaded into the model itself
        super()._load_best_model()


class NeaptideTrainer(NeaptideMixin, Trainer):  # type: ignore[misc]
    """A transformers Trainer with Neaptide's steps; see `NeaptideMixin`."""


@contextmanager
def _captured(accelerator: Any) -> Iterator[list[torch.Tensor]]:
    """Yield a list that gets each loss of `accelerator.backward`, which does nothing else."""
    losses: list[torch.Tensor] = []

    def backward(loss: torch.Tensor) -> None:
        losses.append(loss / accelerator.gradient_accumulation_steps)

    accelerator.backward = backward
    try:
        yield losses
    finally:
        del accelerator.backward
