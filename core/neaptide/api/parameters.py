"""ParameterStore: the only way to touch weights, gradients and optimizer state.

Weights may live on the device, in RAM, split or quantized; nobody but the store's provider
assumes where. What works on loans alone works on all of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable  # noqa: TC003 - the site resolves what a Rider is by it
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch

from .norms import norm_of, on_device, total_norm
from .spans import Change, Keeper, Mode, Rider, Snapshot, Span

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


class ParameterStore(ABC):
    """The verbs. A provider implements `lend`; the rest has defaults built on loans."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._riders: list[Rider] = []
        self._watchers: list[Callable[[Span], None]] = []

    @abstractmethod
    def spans(self) -> list[Span]:
        """Return every span once, tied parameters under their first name."""

    @contextmanager
    def loan(
        self,
        span: Span,
        mode: Mode,
        *,
        of: Literal["weight", "gradient"] = "weight",
        on: torch.device | None = None,
    ) -> Iterator[torch.Tensor]:
        """Lend a span's tensor: shape `span.shape`, on `on` or wherever it lies.

        Valid inside the context only. With `"write"`, what was written is kept at the end. Of a
        span without a gradient, reading it raises KeyError; writing one creates it from zeros.
        """
        try:
            with self.lend(span, mode, of=of, on=on) as tensor:
                yield tensor
        finally:
            if mode == "write" and of == "weight":
                for watcher in tuple(self._watchers):  # one may end itself
                    watcher(span)

    @abstractmethod
    def lend(
        self,
        span: Span,
        mode: Mode,
        *,
        of: Literal["weight", "gradient"] = "weight",
        on: torch.device | None = None,
    ) -> AbstractContextManager[torch.Tensor]:
        """Do what `loan` promises; for the provider to implement, and for nobody else to call."""

    def watch(self, watcher: Callable[[Span], None]) -> Callable[[], None]:
        """Call `watcher(span)` when a weight's loan for writing ends; return what ends it.

        For who keeps another form of the weights. Ordinary updates write without a loan.
        """
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def set_aside(self, spans: Collection[Span]) -> Callable[[], None]:  # noqa: ARG002 - for a provider
        """Have the device do without some weights until what is returned is called.

        Loans go on lending them, from a tier below; the module's own tensors are not to be
        computed with, nor updated. Afterwards they are back, bit for bit as loans have left them.
        A store that cannot leaves them where they are.
        """
        return _nothing

    def keep(self, span: Span, keeper: Keeper) -> Callable[[], None]:  # noqa: ARG002 - for a provider
        """Have `keeper` hold a weight in the module's stead until what is returned is called.

        Loans and updates go through it; the module's own tensor is not to be computed with, but
        takes gradients. ValueError where the weight is part of other memory, or taken already.
        """
        msg = f"this store keeps {span.name!r} in a form of its own"
        raise ValueError(msg)

    def can_set_aside(self, span: Span) -> bool:  # noqa: ARG002 - for a provider
        """Return whether setting `span` aside frees memory of the device."""
        return False

    @abstractmethod
    def has_gradient(self, span: Span) -> bool:
        """Return whether a gradient has been accumulated for `span`."""

    @abstractmethod
    def zero_gradients(self) -> None:
        """Drop all gradients."""

    @property
    def stores_gradients(self) -> bool:
        """Whether gradients wait for the update, so that they can add up and be scaled.

        A store that steps spans inside the backward says no.
        """
        return True

    def compute(self) -> AbstractContextManager[None]:
        """Hold while the module or the optimizer itself runs over the weights.

        A store that brings weights in block by block does nothing here.
        """
        return nullcontext()

    def updated_in_backward(self) -> frozenset[str]:
        """Return the names of spans whose optimizer step already ran inside this backward."""
        return frozenset()

    def step(self) -> None:
        """Let the optimizer update every weight that has a gradient."""
        with self.compute():
            self.optimizer.step()

    def drain(self) -> None:  # noqa: B027 - nothing is lazy unless a provider is
        """Finish lazy updates, so that every loan shows the newest value."""

    # -- riding along ---------------------------------------------------------------------------

    def ride(self, rider: Rider) -> Callable[[], None]:
        """Call `rider` on each trainable span after each update; return what ends it.

        One pass over the weights serves all riders: averages, drift accumulators, metrics.
        """
        self._riders.append(rider)
        return lambda: self._riders.remove(rider)

    def finish_update(self) -> None:
        """Carry the riders over the spans just updated; a store may have done so in backward."""
        self.carry(lambda _span, _weight: None)

    def carry(self, change: Change) -> None:
        """Call every rider on every trainable span, with what `change` says was added to it."""
        if not self._riders:
            return
        with torch.no_grad():
            for span in self.spans():
                if span.trainable:
                    with self.loan(span, "read") as weight:
                        delta = change(span, weight)
                        for rider in self._riders:
                            rider(span, weight, delta)

    # -- gradients ------------------------------------------------------------------------------

    def gradient_norm(self) -> torch.Tensor:
        """Return the global L2 norm of the gradients: 0-dim, zero where there are none.

        In float32, or float64 where a gradient is.
        """
        norms = []
        for span in sorted(self.spans(), key=lambda span: span.name):
            if self.has_gradient(span):
                with self.loan(span, "read", of="gradient") as gradient:
                    norms.append(norm_of(gradient))
        return total_norm(norms)

    def has_nonfinite_gradients(self) -> bool:
        """Return whether any gradient holds inf or nan; waits for the device."""
        return not math.isfinite(self.gradient_norm())

    def scale_gradients(self, factor: float | torch.Tensor) -> None:
        """Multiply every gradient by `factor` (a number or a 0-dim tensor), in place."""
        for span in self.spans():
            if self.has_gradient(span):
                with self.loan(span, "write", of="gradient") as gradient:
                    gradient.mul_(on_device(factor, gradient.device))

    def clip_gradients(self, max_norm: float, norm: torch.Tensor) -> None:
        """Scale every gradient so that the global norm, now `norm`, is at most `max_norm`.

        The arithmetic is that of `torch.nn.utils.clip_grad_norm_`.
        """
        self.scale_gradients(torch.clamp(max_norm / (norm + 1e-6), max=1.0))

    # -- snapshots ------------------------------------------------------------------------------

    def snapshot(self, *, optimizer: bool = False, on: torch.device | str = "cpu") -> Snapshot:
        """Copy every trainable weight (and the optimizer's state) bitwise to the device `on`."""
        self.drain()
        weights = {}
        for span in self.spans():
            if span.trainable:
                with self.loan(span, "read") as weight:
                    weights[span.name] = weight.detach().to(on, copy=True)
        state = _copied(self.optimizer_state_dict(), on) if optimizer else None
        return Snapshot(weights, state)

    def restore(self, snapshot: Snapshot) -> None:
        """Put a snapshot back, bit for bit."""
        self.drain()
        for span in self.spans():
            if span.name in snapshot.weights:
                with self.loan(span, "write") as weight, torch.no_grad():
                    weight.copy_(snapshot.weights[span.name])
        if snapshot.optimizer is not None:
            self.load_optimizer_state_dict(_copied(snapshot.optimizer, None))

    def optimizer_state_dict(self) -> dict[str, Any]:
        """Return the optimizer's `state_dict`."""
        self.drain()
        return self.optimizer.state_dict()

    def load_optimizer_state_dict(self, state: dict[str, Any]) -> None:
        """Load it without changing a dtype.

        torch casts loaded state to the parameter's dtype, which would round fp32 moments of bf16
        weights: the tensors are put back as they were saved.
        """
        self.optimizer.load_state_dict(state)
        numbered = (
            parameter for group in self.optimizer.param_groups for parameter in group["params"]
        )
        for index, parameter in enumerate(numbered):
            for key, value in state["state"].get(index, {}).items():
                loaded = self.optimizer.state[parameter].get(key)
                if isinstance(value, torch.Tensor) and isinstance(loaded, torch.Tensor):
                    self.optimizer.state[parameter][key] = value.to(loaded.device, copy=True)


def _nothing() -> None:
    """There is nothing to put back."""


def _copied(tree: Any, on: torch.device | str | None) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.detach().to(on or tree.device, copy=True)
    if isinstance(tree, dict):
        return {key: _copied(value, on) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_copied(value, on) for value in tree)
    return tree
