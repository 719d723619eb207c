"""`neaptide_accelerator`: an Accelerator whose `prepare` puts a model into a HybridTrainer.

    accelerator = neaptide_accelerator("neaptide.toml", gradient_accumulation_steps=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

The user's loop stays as it is: a step begins when it calls the model, and ends at `optimizer.step`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch
from accelerate import Accelerator
from accelerate.utils import convert_to_fp32

from neaptide import ConfigError
from neaptide.hooks.enabling import configured

from .calls import UserCalls
from .optimizers import SteppedOptimizer
from .pieces import SteppedRun
from .refusals import check_called, check_owned, check_plugins, check_settings, is_placed
from .unshared import unshared

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

    from neaptide import PluginSpec, RunConfig

FOLDER = "neaptide"
"""The Neaptide checkpoint inside each folder of `save_state`."""
_INSTEAD = {
    "best-checkpoint": "call accelerator.save_state where the loop finds a best loss",
    "gradient.accumulation": "pass gradient_accumulation_steps to the accelerator",
    "learning-rate": "prepare a scheduler of torch's",
    "lora": "wrap the model with peft.get_peft_model",
    "metrics": "compute them in the loop",
}
"""Names or claims of plugins, and what a loop with accelerate has in their place."""


def neaptide_accelerator(
    config: RunConfig | Mapping[str, Any] | str | Path | None = None,
    plugins: Iterable[str | PluginSpec] = (),
    **given: Any,
) -> NeaptideAccelerator:
    """Return an Accelerator whose prepared model and optimizer make steps of a HybridTrainer.

    Args:
        config: a TOML, YAML or JSON file, a mapping or a RunConfig, as for HybridTrainer.
        plugins: names of installed plugins, or manifests, in addition to the config's.
        given: the arguments of Accelerator.

    Raises:
        ConfigError: a plugin or a setting contradicts accelerate's, needs the loss of a batch more
            than once, or the accelerator uses several processes, DeepSpeed, FSDP, fp16, fp8 or
            torch.compile.
    """
    return NeaptideAccelerator(config, plugins, **given)


class NeaptideAccelerator(Accelerator):  # type: ignore[misc]
    """What `neaptide_accelerator` returns."""

    def __init__(
        self,
        config: RunConfig | Mapping[str, Any] | str | Path | None,
        plugins: Iterable[str | PluginSpec],
        **given: Any,
    ) -> None:
        self._config, self._plugins = configured(config, plugins)
        check_settings(self._config)
        check_plugins(self._plugins, _INSTEAD)
        check_called(self._config, self._plugins)
        self._placed = is_placed(self._plugins)
        self._trained: nn.Module | None = None
        self._stepped: SteppedOptimizer | None = None
        self._pieces: SteppedRun | None = None
        self._calls: UserCalls | None = None
        self._source: Path | None = None
        super().__init__(**given)
        for refused in self._refused():
            raise ConfigError(refused)
        self.register_load_state_pre_hook(self._before_load)
        if self._placed:
            device = attrs.evolve(self._config.train, device=str(self.device))
            self._config = attrs.evolve(self._config, train=device)

    def _refused(self) -> Iterable[str]:
        kind, processes = self.distributed_type.value, self.num_processes
        if processes > 1 or kind != "NO":
            yield f"neaptide_accelerator runs in one process (got {processes}, {kind})"
        if self.mixed_precision not in {"no", "bf16"}:
            got = f"(got {self.mixed_precision!r}) @ mixed_precision"
            yield f"losses are scaled in a way that plugins do not see; use 'bf16' {got}"
        if self.state.dynamo_plugin.backend.value != "NO":
            yield "a compiled model hides its blocks from plugins; remove this @ dynamo_backend"
        for spec in self._plugins:
            if "autocast" in spec.claims and self.mixed_precision != "no":
                both = f"{spec.name!r} chooses the precision; remove one of the two"
                yield f"{both} (got {self.mixed_precision!r}) @ mixed_precision"

    # -- prepare ----------------------------------------------------------------------------------

    def prepare_model(
        self,
        model: nn.Module,
        device_placement: bool | None = None,  # noqa: FBT001 - accelerate's
        evaluation_mode: bool = False,  # noqa: FBT001, FBT002 - accelerate's
    ) -> Any:
        """Prepare the model as accelerate does, and train it in a HybridTrainer."""
        if evaluation_mode:
            return super().prepare_model(model, device_placement, evaluation_mode)
        if self._trained not in {None, model}:
            msg = (
                "one model is trained; pass another one with prepare_model(model, "
                "evaluation_mode=True)"
            )
            raise ConfigError(msg)
        placing = False if self._placed else device_placement
        self._trained = super().prepare_model(model, placing)
        self._begin()
        return self._trained

    def prepare_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        device_placement: bool | None = None,  # noqa: FBT001 - accelerate's
    ) -> Any:
        """Prepare the optimizer as accelerate does, and let it update in a HybridTrainer."""
        known = getattr(optimizer, "_is_accelerate_prepared", False)
        if self._optimizers and not known:
            msg = "one optimizer is stepped; give it all parameters, in groups"
            raise ConfigError(msg)
        prepared = super().prepare_optimizer(optimizer, device_placement)
        self._begin()
        return prepared

    def _begin(self) -> None:
        if self._trained is None or not self._optimizers or self._pieces is not None:
            return
        (prepared,) = self._optimizers
        real = prepared.optimizer
        self._pieces = SteppedRun(self._trained, real, self._config, self._plugins, called=True)

        def note(skipped: bool) -> None:  # noqa: FBT001 - a callback
            prepared._is_overflow = skipped  # noqa: SLF001 - so the schedule stays

        self._stepped = SteppedOptimizer(real, self._pieces, note)
        prepared.optimizer = self._stepped
        casts = any("autocast" in spec.claims for spec in self._plugins)
        finish = convert_to_fp32 if casts else None  # as accelerate's own autocast does
        self._calls = UserCalls(self._pieces, [self._trained], finish)

    # -- the loop ---------------------------------------------------------------------------------

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Run the backward of a loss in the step that the call of the model has begun."""
        if self._pieces is None:
            super().backward(loss, **kwargs)
            return
        if kwargs:
            msg = f"backward takes the loss alone (got {', '.join(kwargs)}); add up the losses"
            raise ConfigError(msg)
        self._pieces.backward(loss / self.gradient_accumulation_steps)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        """Clip as accelerate does, also gradients that are elsewhere."""
        if self._pieces is None:
            return super().clip_grad_norm_(parameters, max_norm, norm_type)
        if norm_type != 2:  # noqa: PLR2004 - the Euclidean norm
            msg = f"norm_type must be 2 here (got {norm_type})"
            raise ConfigError(msg)
        self._check_all(parameters)
        return self._pieces.clip(float(max_norm))

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Clamp as accelerate does, also gradients that are elsewhere."""
        if self._pieces is None:
            super().clip_grad_value_(parameters, clip_value)
            return
        self._check_all(parameters)
        self._pieces.clamp(float(clip_value))

    def _check_all(self, parameters: Any) -> None:
        assert self._trained is not None, "the run has begun"
        assert self._stepped is not None, "as above"
        check_owned(self._trained, self._stepped.real)
        given = {id(one) for one in parameters}
        named = self._trained.named_parameters()
        left = [name for name, one in named if one.requires_grad and id(one) not in given]
        if left:
            msg = (
                f"gradients are clipped together; pass model.parameters() ({left[0]!r} is missing)"
            )
            raise ConfigError(msg)

    def evaluation(self, run: Any) -> Any:
        """Return `run()`, a whole evaluation: `ema` evaluates the averaged weights there."""
        return run() if self._pieces is None else self._pieces.evaluation(run)

    # -- checkpoints ------------------------------------------------------------------------------

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> Any:  # noqa: FBT001, FBT002
        """Return the newest weights, wherever the plugins hold them."""
        if self._pieces is None:
            return super().get_state_dict(model, unwrap)
        with self._pieces.settled():
            return unshared(super().get_state_dict(model, unwrap))

    def save_state(self, *args: Any, **kwargs: Any) -> Any:
        """Save accelerate's state, and beside it a checkpoint with that of the plugins."""
        if self._pieces is None or self._stepped is None:
            return super().save_state(*args, **kwargs)
        with self._stepped.lent():
            saved = super().save_state(*args, **kwargs)
        self._pieces.hybrid.save(Path(saved) / FOLDER)
        return saved

    def load_state(self, *args: Any, **kwargs: Any) -> None:
        """Load accelerate's state, and the checkpoint beside it; a plain accelerator saves none."""
        super().load_state(*args, **kwargs)
        assert self._source is not None, "noted by the hook"
        folder = self._source / FOLDER
        if self._pieces is not None and folder.is_dir():
            self._pieces.load(folder)

    def _before_load(self, models: list[Any], source: str) -> None:
        self._source = Path(source)
        trained = self._trained
        if self._placed and trained is not None and self._pieces is not None:
            models[:] = [_Unshared(trained) if one is trained else one for one in models]

    # -- end --------------------------------------------------------------------------------------

    def end_training(self) -> None:
        """End the run: plugins undo their patches. Then end accelerate's training."""
        self._end()
        super().end_training()

    def free_memory(self, *objects: Any) -> Any:
        """End the run, and let accelerate free its memory."""
        self._end()
        self._trained = None
        return super().free_memory(*objects)

    def _end(self) -> None:
        pieces, self._pieces = self._pieces, None
        if pieces is None or self._calls is None or self._stepped is None:
            return
        self._calls.close()
        for prepared in self._optimizers:
            prepared.optimizer = self._stepped.real
        self._calls = self._stepped = None
        pieces.close()


class _Unshared:
    """Lets safetensors load into a model whose blocks are one storage each."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        """Return the names and shapes; memory that nobody writes costs nothing."""
        return unshared(self._model.state_dict(), torch.empty_like)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Any:  # noqa: FBT001, FBT002
        """Load the weights into the model."""
        return self._model.load_state_dict(state, strict=strict)
