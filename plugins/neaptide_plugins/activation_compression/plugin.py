"""The plugin: compresses the tensors saved in forwards and in recomputations of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import ConfigError, Plugin, hookimpl
from neaptide_toolkit.gradient_error import is_measured

from .config import ActivationCompressionConfig
from .gradient_error_meter import GradientErrorMeter
from .needs import NodeNeeds
from .saving import SavedBytes, Saving

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import AroundBackward, AroundForward, AroundTrainStep, ParameterStore, Phase, Run


@attrs.define(eq=False)
class ActivationCompression(Plugin[ActivationCompressionConfig]):
    """Compresses the saved tensors of training forwards in the configured phases."""

    _ops: NodeNeeds = attrs.field(init=False)
    _measuring: GradientErrorMeter = attrs.field(init=False)
    _held: SavedBytes = attrs.field(init=False, factory=SavedBytes)

    @_ops.default
    def _chosen(self) -> NodeNeeds:
        return NodeNeeds(self.config.exclude)

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore) -> None:
        """Create the meter that measures the error of the gradients."""
        self._measuring = GradientErrorMeter(self.config.check_every, run, store)

    @hookimpl
    def around_train_step(self) -> AroundTrainStep:
        """Count the steps between two measurements."""

        def step(following: Callable[..., Any], **arguments: Any) -> Any:
            self._measuring.step()
            return following(**arguments)

        return step

    @hookimpl
    def around_forward(self) -> AroundForward:
        """Compress the tensors that a forward saves; measure the error if a measurement is due."""

        def forward(
            following: Callable[..., Any], *, phase: Phase, moment: str, **arguments: Any
        ) -> Any:
            def exact() -> Any:
                return following(phase=phase, moment=moment, **arguments)

            if moment != "train" or phase.name not in self.config.phases or is_measured():
                return exact()
            if self._measuring.due:
                saving = self._saving()
                self._measuring.measure(
                    arguments["model"], exact, lambda: _finished(saving, exact), saving.hooks()
                )
            saving = self._saving()
            with saving.hooks():
                loss = _finished(saving, exact)
            self._held = saving.held()
            return loss

        return forward

    @hookimpl
    def around_backward(self) -> AroundBackward:
        """Compress the tensors saved by blocks that are recomputed in the backward."""

        def backward(following: Callable[..., None], *, phase: Phase, **arguments: Any) -> None:
            if phase.name not in self.config.phases:
                following(phase=phase, **arguments)
                return
            with self._saving().hooks():
                following(phase=phase, **arguments)

        return backward

    @hookimpl
    def collect_metrics(self) -> dict[str, float]:
        """Return the last measured error, and the bytes of tensors saved in the last forward."""
        held = self._held
        metrics = {
            "exact_bytes": float(held.exact),
            "held_bytes": float(held.compressed),
            "saved_share": held.share,
        }
        if self._measuring.last is not None:
            metrics["gradient_error"] = self._measuring.last
        return metrics

    def report(self) -> str | None:
        """Return a text with the bytes saved in the last forward and the error of the gradients."""
        held, measured = self._held, self._measuring
        if not held.exact:
            return None
        text = (
            f"activations held for the backward: {held.compressed} of {held.exact} bytes "
            f"({held.share:.1%} saved)"
        )
        if measured.last is None:
            return text
        return (
            f"{text}\nrelative error of the gradients: {measured.last:.2e} last, "
            f"{measured.worst:.2e} at most in {measured.count} measurements"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps and the errors measured so far."""
        return self._measuring.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self._measuring.load_state_dict(state)

    def _saving(self) -> Saving:
        config = self.config
        return Saving(self._ops, group=config.group, min_elements=config.min_elements)


def _finished(saving: Saving, call: Callable[[], Any]) -> Any:
    try:
        loss = call()
    except RuntimeError as error:
        if "saved tensor hooks" not in str(error):
            raise
        msg = (
            "the model differentiates with torch.func in its forward, where torch allows no "
            "saved-tensor hooks; remove [plugins.activation-compression] from the config"
        )
        raise ConfigError(msg) from error
    saving.finish(loss.value)
    return loss
