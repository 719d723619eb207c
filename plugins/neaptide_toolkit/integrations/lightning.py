"""`NeaptideStrategy`: a Lightning strategy whose steps are those of a HybridTrainer.

    trainer = lightning.Trainer(strategy=NeaptideStrategy("neaptide.toml"))
    trainer.fit(module, loader)

Loops, callbacks, clipping, schedules, accumulation and checkpoints stay those of Lightning.
"""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import nn

from neaptide import ConfigError, RunConfig
from neaptide.hooks.enabling import configured

from .calls import UserCalls
from .optimizers import SteppedOptimizer
from .packed import packed, unpacked
from .pieces import SteppedRun
from .refusals import check_called, check_owned, check_plugins, check_settings, is_placed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import torch

    from neaptide import PluginSpec

KEY = "neaptide"
"""The entry of a Lightning checkpoint that holds the Neaptide checkpoint."""
_INSTEAD = {
    "background-save": "use lightning.pytorch.plugins.io.AsyncCheckpointIO",
    "best-checkpoint": "use the callback ModelCheckpoint",
    "gradient.accumulation": "set accumulate_grad_batches in the Trainer",
    "learning-rate": "return a scheduler from configure_optimizers",
    "lora": "wrap the model with peft.get_peft_model",
    "metrics": "log them in validation_step",
}
"""Names or claims of plugins, and what Lightning has in their place."""
_PRECISIONS = ("32-true", "bf16-mixed", "bf16-true")


class NeaptideStrategy(SingleDeviceStrategy):  # type: ignore[misc]
    """Train a LightningModule in a HybridTrainer, on one device.

    Args:
        config: a TOML, YAML or JSON file, a mapping or a RunConfig, as for HybridTrainer.
        plugins: names of installed plugins, or manifests, in addition to the config's.
        given: other arguments of SingleDeviceStrategy, such as `checkpoint_io`.

    Raises:
        ConfigError: a plugin or a setting contradicts Lightning's, or needs the loss of a batch
            more than once; when the training begins, also for several devices or optimizers, fp16,
            and an overridden `backward`.
    """

    optimizers: Any
    """Lightning's property."""

    def __init__(
        self,
        config: RunConfig | Mapping[str, Any] | str | Path | None = None,
        plugins: Iterable[str | PluginSpec] = (),
        **given: Any,
    ) -> None:
        super().__init__(**given)
        self._config, self._plugins = configured(config, plugins)
        check_settings(self._config)
        check_plugins(self._plugins, _INSTEAD)
        check_called(self._config, self._plugins)
        self._placed = is_placed(self._plugins)
        self._pieces: SteppedRun | None = None
        self._calls: UserCalls | None = None
        self._error: BaseException | None = None
        self._undo: list[Callable[[], None]] = []

    @property
    def parallel_devices(self) -> list[torch.device]:
        """The device that the Trainer has chosen; empty before."""
        return []

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device]) -> None:
        if len(devices) != 1:
            msg = f"NeaptideStrategy uses one device (got {len(devices)}); set devices=1"
            raise ConfigError(msg)
        (self._root_device,) = devices

    # -- begin and end ----------------------------------------------------------------------------

    def model_to_device(self) -> None:
        """Move the model, unless a plugin moves it."""
        if not self._placed:
            super().model_to_device()

    def setup(self, trainer: Any) -> None:
        """Set up as Lightning does, then begin the run."""
        self._error = None
        fits = trainer.state.fn == TrainerFn.FITTING
        super().setup(trainer)
        if fits:
            for refused in self._refused(trainer):
                raise ConfigError(refused)
            self._warn()
        if fits or self._placed:
            self._begin(trainer, alone=not fits)

    def _refused(self, trainer: Any) -> Iterator[str]:
        if trainer.world_size > 1:
            yield f"NeaptideStrategy runs in one process (got {trainer.world_size}); set devices=1"
        if len(self.optimizers) != 1:
            got = f"(got {len(self.optimizers)}) @ configure_optimizers"
            yield f"return one optimizer, with all parameters in its groups {got}"
        got = self.precision_plugin.precision
        if got not in _PRECISIONS:
            yield f"precision must be one of {', '.join(_PRECISIONS)} (got {got!r}) @ precision"
        for spec in self._plugins:
            if "autocast" in spec.claims and got != "32-true":
                both = f"{spec.name!r} chooses the precision; remove one of the two"
                yield f"{both} (got {got!r}) @ precision"
            if "autocast" in spec.claims and not self.lightning_module.automatic_optimization:
                yield f"{spec.name!r} does not see a manual loss; remove it @ plugins.{spec.name}"
        if getattr(self.lightning_module, "_compiler_ctx", None) is not None:
            yield "a compiled module hides its blocks from plugins; compile its blocks instead"
        if is_overridden("backward", self.lightning_module):
            yield "the backward is the run's own; remove backward from the module"

    def _warn(self) -> None:
        if is_overridden("optimizer_zero_grad", self.lightning_module):
            rank_zero_warn(
                "optimizer_zero_grad of the module has no effect: gradients are dropped after each "
                "update"
            )

    def _begin(self, trainer: Any, *, alone: bool) -> None:
        """Make the run; `alone` without an optimizer, and only of plugins that place the model."""
        config, plugins, module = self._config, self._plugins, self.lightning_module
        if self._placed:
            device = attrs.evolve(config.train, device=str(self.root_device))
            config = attrs.evolve(config, train=device)
        if alone:
            plugins = [spec for spec in plugins if is_placed([spec])]
            chosen = {spec.name: config.plugins[spec.name] for spec in plugins}
            config = attrs.evolve(config, run=RunConfig().run, plugins=chosen)
            self._pieces = SteppedRun(module, None, config, plugins)
        else:
            (real,) = self.optimizers
            self._pieces = SteppedRun(module, real, config, plugins, called=True)
            self.optimizers = [SteppedOptimizer(real, self._pieces, lambda _: None)]
            self._take_over(trainer)
        automatic = alone or module.automatic_optimization
        called = [] if automatic else [module, *_parts(module)]
        self._calls = UserCalls(self._pieces, called)

    def _take_over(self, trainer: Any) -> None:
        """Let clipping and evaluations run where the plugins are; `_end` undoes it."""
        pieces, loop = self._pieces, trainer.fit_loop.epoch_loop.val_loop
        assert pieces is not None, "begun"
        evaluate = loop.run
        self._replace(loop, "run", lambda: pieces.evaluation(evaluate))
        clips, hybrid = self.precision_plugin, pieces.hybrid

        def clip(_: Any, norm: Any) -> Any:
            check_owned(hybrid.model, hybrid.optimizer)
            return pieces.clip(float(norm))

        self._replace(clips, "clip_grad_by_norm", clip)
        self._replace(clips, "clip_grad_by_value", lambda _, limit: pieces.clamp(float(limit)))

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        setattr(owner, name, value)
        self._undo.append(lambda: delattr(owner, name))

    def on_exception(self, exception: BaseException) -> None:
        """Tell the plugins what has ended the run."""
        self._error = exception
        super().on_exception(exception)

    def teardown(self) -> None:
        """End the run: plugins undo their patches. Then tear down as Lightning does."""
        pieces, self._pieces = self._pieces, None
        while self._undo:
            self._undo.pop()()
        if self._calls is not None:
            self._calls.close()
            self._calls = None
        self.optimizers = [getattr(one, "real", one) for one in self.optimizers]
        try:
            if pieces is not None:
                pieces.close(self._error)
        finally:
            super().teardown()

    # -- a step -----------------------------------------------------------------------------------

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Make the module's step; with automatic optimization it is one forward."""
        if self._calls is None or not self.lightning_module.automatic_optimization:
            return super().training_step(*args, **kwargs)
        batch = args[0] if args else kwargs
        step = super().training_step
        return self._calls.within(batch, lambda: step(*args, **kwargs))

    def backward(self, closure_loss: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the backward in the step that the forward has begun; call the hooks around it."""
        if self._pieces is None:
            return super().backward(closure_loss, optimizer, *args, **kwargs)
        if args or kwargs:
            msg = (
                f"manual_backward takes the loss alone (got {[*args, *kwargs]}); add up the losses"
            )
            raise ConfigError(msg)
        self.pre_backward(closure_loss)
        loss = self.precision_plugin.pre_backward(closure_loss, self.lightning_module)
        self._pieces.backward(loss)
        loss = self.precision_plugin.post_backward(loss, self.lightning_module)
        self.post_backward(loss)
        return loss

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate one batch inside the plugins' middleware."""
        return self._evaluated(super().validation_step, args, kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate one batch inside the plugins' middleware."""
        return self._evaluated(super().test_step, args, kwargs)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Predict one batch inside the plugins' middleware."""
        return self._evaluated(super().predict_step, args, kwargs)

    def _evaluated(self, step: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._calls is None:
            return step(*args, **kwargs)
        return self._calls.within(args[0] if args else kwargs, lambda: step(*args, **kwargs))

    # -- checkpoints ------------------------------------------------------------------------------

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the newest weights, wherever the plugins hold them."""
        with nullcontext() if self._pieces is None else self._pieces.settled():
            state: dict[str, Any] = super().lightning_module_state_dict()
        return state

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, **kwargs: Any) -> None:
        """Write Lightning's checkpoint with a Neaptide checkpoint in it."""
        if self._pieces is None and self._plugins:
            rank_zero_warn(
                f"{filepath} has no state of Neaptide's plugins, whose run has ended; the callback "
                f"ModelCheckpoint saves it"
            )
        if self._pieces is None or "optimizer_states" not in checkpoint:  # weights only
            super().save_checkpoint(checkpoint, filepath, **kwargs)
            return
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            saved = self._pieces.hybrid.save(Path(folder) / KEY)
            super().save_checkpoint({**checkpoint, KEY: packed(saved)}, filepath, **kwargs)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load the optimizer's state and the Neaptide checkpoint; a plain strategy writes none."""
        if self._pieces is None:
            super().load_optimizer_state_dict(checkpoint)
            return
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            optimizer.load_state_dict(state)
        if KEY in checkpoint:
            with tempfile.TemporaryDirectory() as folder:
                self._pieces.load(unpacked(checkpoint[KEY], Path(folder) / KEY))


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules in the attributes of a module, also those in its lists and dicts."""
    for part in module.children():
        if type(part).forward is nn.Module.forward:  # a container
            yield from _parts(part)
        else:
            yield part
