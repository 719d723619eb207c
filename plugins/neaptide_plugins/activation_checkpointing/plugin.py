"""The plugin: patches the model's blocks and enables checkpointing in the configured phases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import ConfigError, Plugin, hookimpl
from neaptide_toolkit.recompute import find_blocks

from .config import ActivationCheckpointingConfig
from .segments import Segments

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from neaptide import AroundForward, Phase, Run

_WHERE = "@ plugins.activation-checkpointing"


@attrs.define(eq=False)
class ActivationCheckpointing(Plugin[ActivationCheckpointingConfig]):
    """Checkpoints training forwards in the configured phases."""

    _segments: Segments | None = attrs.field(init=False, default=None)
    _active: bool = attrs.field(init=False, default=False)
    _noted: int = attrs.field(init=False, default=0)
    _saved: tuple[int, int] = attrs.field(init=False, default=(0, 0))

    @hookimpl
    def convert_model(self, model: nn.Module) -> None:
        """Find and patch the blocks."""
        config = self.config
        try:
            blocks = find_blocks(model, config.blocks, config.exclude)
            segments = Segments(
                interval=config.interval,
                ratio=config.ratio,
                save_ops=config.save_ops,
                enabled=lambda: self._active,
            )
        except ValueError as error:
            msg = f"{error} {_WHERE}"
            raise ConfigError(msg) from error
        if not blocks:
            msg = (
                f"{type(model).__name__} has no repeated blocks in a ModuleList, Sequential or "
                f"ModuleDict; set a pattern of the blocks' names such as 'encoder.*' "
                f"{_WHERE}.blocks"
            )
            raise ConfigError(msg)
        segments.attach(blocks)
        self._segments = segments

    @hookimpl
    def on_run_end(self) -> None:
        """Restore the original forwards of the blocks."""
        if self._segments is not None:
            self._segments.detach()

    @hookimpl
    def around_forward(self, run: Run) -> AroundForward:
        """Enable checkpointing during training forwards of the configured phases."""
        segments = self._segments
        assert segments is not None, "the model was converted"

        def checkpointed(
            following: Callable[..., Any], *, phase: Phase, moment: str, **arguments: Any
        ) -> Any:
            self._active = moment == "train" and phase.name in self.config.phases
            segments.reset_statistics()
            try:
                return following(phase=phase, moment=moment, **arguments)
            finally:
                if self._active:
                    self._saved = (segments.dropped_bytes, segments.kept_bytes)
                self._active = False
                for note in segments.notes[self._noted :]:
                    run.log.warning("activation-checkpointing.note", note=note)
                self._noted = len(segments.notes)

        return checkpointed

    @hookimpl
    def collect_metrics(self) -> dict[str, float]:
        """Return the bytes of activations dropped, and of inputs kept, by the last forward."""
        dropped, kept = self._saved
        return {"dropped_bytes": float(dropped), "kept_bytes": float(kept)}
