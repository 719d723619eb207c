"""Train byte-gpt through all four phases with some plugins, and count the bytes in each phase."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.nn import functional

from neaptide import HybridTrainer, Loss, Plugin, PluginSpec, hookimpl
from neaptide.api.memory import MOMENTS
from neaptide.api.phases import PHASES
from neaptide.plugin import NoConfig
from neaptide_plugins.builtin_models.byte_gpt import build
from neaptide_plugins.builtin_models.config import ByteGptOptions
from neaptide_toolkit.offload import mapped_slabs, slab_bytes
from neaptide_toolkit.testing.allocations import Allocations, counted
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from neaptide import AroundForward, AroundPredict
    from neaptide.api.phases import Phase

CYCLE: dict[str, Any] = {
    "warmup": {"steps": 1},
    "full": {"steps": 2},
    "predict": {"max_horizon": 3, "correction_interval": 1, "rise": 10.0},
    "correct": {"steps": 1},
}
STEPS = 7
"""Number of steps of two cycles of phases. The second cycle includes memory that is allocated only
at first use."""
BYTES = 256


@attrs.frozen(kw_only=True)
class Size:
    """The sizes of a byte-gpt and of its batch."""

    layers: int
    width: int
    heads: int
    context: int
    batch: int

    def model(self) -> nn.Module:
        """Return a new model. Every call returns a model with the same weights."""
        torch.manual_seed(0)
        return build(
            ByteGptOptions(
                layers=self.layers, width=self.width, heads=self.heads, context=self.context
            )
        )


def measured(size: Size, plugins: Mapping[str, Any], device: str = "cpu") -> list[dict[str, Any]]:
    """Return a row for each phase: the estimated bytes (ledger) and the measured peaks.

    The ledger has bytes by moment of a step and by tier (device or host).

    Raises an error if the run cannot be built: plugins conflict, or this machine cannot satisfy the
    settings.
    """
    gc.collect()  # free the memory of the previous run
    slabs_before, slabs = mapped_slabs(), dict.fromkeys(PHASES, 0)

    def look(phase: Phase) -> None:
        slabs[phase.name] = max(slabs[phase.name], slab_bytes(slabs_before))

    with counted() as allocations:
        model = size.model()
        if "layer-streaming" not in plugins:  # it moves the model itself
            model.to(device)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        config = {
            "train": {"device": device},
            "phases": CYCLE,
            "plugins": dict(plugins),
        }
        extra = [STEADY_PREDICTOR, WATCH]
        with HybridTrainer(
            model, optimizer, loss_fn=_loss, config=config, plugins=extra
        ) as trainer:
            watch = trainer.hooks.plugins[WATCH.name]
            assert isinstance(watch, Watch), "it is what the manifest names"
            watch.look = look
            tokens = torch.randint(BYTES, (size.batch, size.context + 1), device=device)
            for _ in range(STEPS):
                trainer.step(tokens)
            ledgers = {name: trainer.estimate_memory(name) for name in PHASES}
    # The run's end also ended the last phase.
    peaks = watch.cuda if device == "cuda" else allocations.peaks_after_marks()
    return [
        {
            "phase": name,
            "parameters": parameters,
            "ledger": {
                moment: {
                    tier: ledger.total(tier=tier, moment=moment) for tier in ("device", "host")
                }
                for moment in MOMENTS
            },
            "allocated_peak": peaks.get(name, 0),
            "slabs_peak": slabs[name],
        }
        for name, ledger in ledgers.items()
    ]


def _loss(model: nn.Module, tokens: torch.Tensor) -> Loss:
    logits = model(tokens[:, :-1])
    targets = tokens[:, 1:].flatten()
    total = functional.cross_entropy(logits.flatten(0, 1), targets, reduction="sum")
    return Loss(total, targets.numel())


@attrs.define(eq=False)
class Watch(Plugin[NoConfig]):
    """Resets the peak counters at the start of each phase, and counts host buffers in the phase."""

    look: Callable[[Phase], None] = attrs.field(init=False, default=lambda _: None)
    cuda: dict[str, int] = attrs.field(init=False, factory=dict)
    """Peak bytes by phase; empty without a GPU."""
    _counting: str = attrs.field(init=False, default="between")

    @hookimpl
    def on_phase_enter(self, phase: Phase) -> None:
        """Start the count for the new phase.

        In Predict, start only after plugins have moved tensors.
        """
        self._begin("between" if phase.applies_prediction else phase.name)

    @hookimpl
    def around_predict(self) -> AroundPredict:
        """Count during the forecast, the jump and the probes (forward passes that test the jump).

        Transfers before and after are excluded.
        """

        def predict(following: Callable[..., Any], *, phase: Phase, **arguments: Any) -> Any:
            self._begin(phase.name)
            jump = following(phase=phase, **arguments)
            self._begin("between")
            return jump

        return predict

    def _begin(self, name: str) -> None:
        if torch.cuda.is_available():
            now = torch.cuda.max_memory_allocated()
            self.cuda[self._counting] = max(self.cuda.get(self._counting, 0), now)
            torch.cuda.reset_peak_memory_stats()
        self._counting = name
        Allocations.mark(name)

    @hookimpl
    def on_phase_exit(self, phase: Phase) -> None:
        """Count host buffers, and end the count of this phase. The run may end after this phase."""
        self.look(phase)
        self._begin("between")

    @hookimpl
    def before_forward(self, phase: Phase) -> None:
        """Count host buffers."""
        self.look(phase)

    @hookimpl
    def after_forward(self, phase: Phase) -> None:
        """Count host buffers while activations are held."""
        self.look(phase)

    @hookimpl
    def around_forward(self) -> AroundForward:
        """Count host buffers before every forward, including probes."""

        def forward(following: Callable[..., Any], *, phase: Phase, **arguments: Any) -> Any:
            self.look(phase)
            return following(phase=phase, **arguments)

        return forward


WATCH = PluginSpec(
    name="memory-watch", load=f"{__name__}:Watch", summary="Marks phases for the memory guide."
)
