"""`NeaptideTrainer`: a transformers Trainer whose steps are those of a HybridTrainer.

    trainer = NeaptideTrainer(model, args, train_dataset=data, neaptide_plugins=["layer-streaming"])
    trainer.train()

Callbacks, clipping, schedules, accumulation and checkpoints stay those of Trainer.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from transformers import Trainer

from neaptide.hooks.enabling import configured

from .arguments import check_arguments
from .optimizers import SteppedOptimizer, captured_losses
from .pieces import SteppedRun
from .references import Reference, of_reference, placing_run
from .refusals import check_plugins, check_settings, is_placed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import torch

    from neaptide import PluginSpec, RunConfig

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
        neaptide_reference: how a frozen model beside the trained one, such as DPO's `ref_model`, is
            placed: True for the settings by which a plugin places the trained one, a mapping for
            other settings of this plugin, False for Trainer's way, whole on the device.

    All other arguments are Trainer's. While `train()` runs, plugins may hold the weights elsewhere;
    afterwards the model is as Trainer leaves it.

    Raises:
        ConfigError: a plugin or a setting contradicts Trainer's, or Trainer uses something that is
            not supported: several processes, DeepSpeed, FSDP, fp16, torch.compile.
    """

    _pieces: SteppedRun | None = None
    _over = True
    """Whether no training runs, or its run has ended."""
    _within = False
    """Whether an evaluation runs."""

    def __init__(
        self,
        *args: Any,
        neaptide_config: RunConfig | Mapping[str, Any] | str | Path | None = None,
        neaptide_plugins: Iterable[str | PluginSpec] = (),
        neaptide_reference: bool | Mapping[str, Any] = True,
        **kwargs: Any,
    ) -> None:
        config, ordered = configured(neaptide_config, neaptide_plugins)
        check_settings(config)
        check_plugins(ordered, _INSTEAD)
        self._neaptide_config, self._neaptide_plugins = config, ordered
        self._placed = is_placed(ordered)
        self._references: list[Reference] = []
        self._of_reference = of_reference(config, ordered, given=neaptide_reference)
        try:
            super().__init__(*args, **kwargs)
            check_arguments(self.args, self.accelerator, ordered)
        finally:  # TRL may have computed with a reference
            self._end()

    def create_accelerator_and_postprocess(self) -> None:
        """Create Trainer's accelerator; clip, and place models, where the plugins hold weights."""
        super().create_accelerator_and_postprocess()
        self._clip_theirs = self.accelerator.clip_grad_norm_
        self.accelerator.clip_grad_norm_ = self._clip
        self._prepare_theirs = self.accelerator.prepare_model
        self.accelerator.prepare_model = self._prepared

    def _prepared(
        self, model: Any, *args: Any, evaluation_mode: bool = False, **kwargs: Any
    ) -> Any:
        """Prepare as accelerate does, but place a model that is not trained as the plugin does."""
        config = self._of_reference
        beside = evaluation_mode and model is not self.model and config is not None
        with self._left_in_place() if beside else nullcontext():
            prepared = self._prepare_theirs(model, *args, evaluation_mode=evaluation_mode, **kwargs)
        if config is not None and beside:
            self._references.append(Reference(prepared, partial(self._placing, config)))
        return prepared

    def _placing(self, config: RunConfig, model: Any) -> SteppedRun:
        return placing_run(self._on_device(config), self._neaptide_plugins, model)

    def _on_device(self, config: RunConfig) -> RunConfig:
        """Return the config with Trainer's device, if a plugin moves the model there."""
        if not self._placed:
            return config
        device = attrs.evolve(config.train, device=str(self.args.device))
        return attrs.evolve(config, train=device)

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
                self.model, real, self._on_device(self._neaptide_config), self._neaptide_plugins
            )
            self.optimizer.optimizer = SteppedOptimizer(real, self._pieces, self._note_skipped)
        return self._pieces

    def _note_skipped(self, skipped: bool) -> None:  # noqa: FBT001 - a callback
        self.optimizer._is_overflow = skipped  # noqa: SLF001 - so Trainer leaves the schedule

    def _end(self, error: BaseException | None = None) -> None:
        pieces, self._pieces, self._over = self._pieces, None, True
        stepped = getattr(getattr(self, "optimizer", None), "optimizer", None)
        if isinstance(stepped, SteppedOptimizer):
            self.optimizer.optimizer = stepped.real
        if pieces is not None:
            pieces.close(error)
        for one in self._references:
            one.end(error)

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Make Trainer's own step, but run its backward in a HybridTrainer's step."""
        returned: list[torch.Tensor] = []

        def compute() -> torch.Tensor:
            if not model.training:
                return self._probed(model, inputs)
            with captured_losses(self.accelerator) as losses:
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
        if self._within or (self._over and not self._placed):
            return super().evaluation_loop(*args, **kwargs)
        pieces = self._placing_alone() if self._over else self._begin()
        self._within = True
        try:
            with self._left_in_place():
                return pieces.evaluation(
                    lambda: super(NeaptideMixin, self).evaluation_loop(*args, **kwargs)
                )
        finally:
            self._within = False
            if self._over:
                self._end()

    def _placing_alone(self) -> SteppedRun:
        """Return the run in which the model is only placed; begin it if there is none."""
        if self._pieces is None:
            self._pieces = self._placing(self._neaptide_config, self.model)
        return self._pieces

    def compute_ref_log_probs(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute TRL's log-probabilities of a reference that is the model before its training."""
        theirs = partial(super().compute_ref_log_probs, model, *args, **kwargs)
        if model is not self.model or not self._placed:
            return theirs()
        return self._placing_alone().evaluation(theirs)

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
