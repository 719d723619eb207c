"""A small task that is difficult for plugins: dropout, batch norm, tied and frozen parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import nn
from torch.nn import functional

from neaptide.api.steps import Loss, Update
from neaptide.plugin import NoConfig, Plugin, PluginSpec, hookimpl
from neaptide.renamed import missing_in
from neaptide.text import one_line

if TYPE_CHECKING:
    from neaptide.api.parameters import ParameterStore
    from neaptide.api.spans import Span

WIDTH = 16
CLASSES = 8


class TinyBlock(nn.Module):
    """A residual block; if `coupled`, its samples depend on each other and on random numbers."""

    def __init__(self, shared: nn.Linear, *, coupled: bool) -> None:
        super().__init__()
        width = shared.in_features
        self.norm: nn.Module = nn.BatchNorm1d(width) if coupled else nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.shared = shared
        self.drop = nn.Dropout(0.1 if coupled else 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[N, width]` to `[N, width]`."""
        hidden = self.down(functional.gelu(self.up(self.norm(x))))
        mixed: torch.Tensor = x + self.drop(hidden) + 0.1 * torch.tanh(self.shared(x))
        return mixed


class TinyNet(nn.Module):
    """Four blocks that share a layer, after a frozen projection."""

    def __init__(self, width: int = WIDTH, *, coupled: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.first.weight.requires_grad_(False)
        shared = nn.Linear(width, width)
        self.blocks = nn.ModuleList(TinyBlock(shared, coupled=coupled) for _ in range(4))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map float32 `[N, width]` to logits `[N, 8]`."""
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(x)
        return logits


def tiny_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> Loss:
    """Return summed cross-entropy over the samples whose label is not -100."""
    logits = model(batch["x"])
    total = functional.cross_entropy(logits, batch["y"], reduction="sum", ignore_index=-100)
    return Loss(total, int((batch["y"] != -100).sum()))  # noqa: PLR2004 - torch's ignore_index


@attrs.frozen(eq=False)
class TinyTask:
    """A model, its optimizer and its batches. `tiny_task` returns equal tasks for equal seeds."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: list[dict[str, torch.Tensor]]

    __repr__ = one_line


def accelerator_or_cpu() -> torch.device:
    """Return the device of this machine's accelerator, or the CPU where there is none."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def tiny_task(
    seed: int = 0,
    steps: int = 32,
    *,
    coupled: bool = True,
    width: int = WIDTH,
    device: torch.device | str | None = None,
) -> TinyTask:
    """Build the task from `seed`: a TinyNet, AdamW, `steps` batches of 12 samples of `width`.

    If not `coupled`, the network has no batch norm and no dropout, so splitting a batch changes
    no result. Model and batches are on `device`: by default the accelerator, if there is one.
    """
    torch.manual_seed(seed)
    device = accelerator_or_cpu() if device is None else torch.device(device)
    model = TinyNet(width, coupled=coupled).to(device)
    optimizer = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-2
    )
    generator = torch.Generator().manual_seed(seed + 1)
    batches = []
    for _ in range(steps):
        x = torch.randn(12, width, generator=generator, device="cpu")
        y = x[:, :CLASSES].argmax(dim=1)
        y[0] = -100
        batches.append({"x": x.to(device), "y": y.to(device)})
    return TinyTask(model, optimizer, batches)


@attrs.define(eq=False)
class SteadyPredictor(Plugin[NoConfig]):
    """A predictor that always proposes to shrink every weight by a thousandth."""

    @hookimpl
    def propose_update(self, store: ParameterStore) -> Update:
        """Read the weights through loans and return the proposal."""

        def delta(span: Span) -> Any:
            with store.loan(span, "read") as weight:
                return weight * -0.001

        return Update(3, delta)


STEADY_PREDICTOR = PluginSpec(
    name="steady-predictor",
    load="neaptide_toolkit.testing.tiny:SteadyPredictor",
    summary="A predictor that always proposes, for tests.",
    claims={"predictor"},
    numerics="changes-training",
)

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = missing_in(__name__)
