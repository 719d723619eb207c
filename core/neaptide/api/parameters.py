"""ParameterStore: the only way to touch weights, gradients and optimizer state.

Weights may live on the device, in RAM, split or quantized; only the store's provider knows where.
Code that uses loans alone works on all of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable  # noqa: TC003 - the site resolves OnUpdate by it
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from neaptide.renamed import missing_in
from neaptide.tensors import mapped

from .memory import named_by_bytes
from .norms import norm_of, on_device, total_norm
from .spans import Change, Evictable, Keeper, Leaves, Mode, Of, OnUpdate, Refuge, Snapshot, Span

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from torch import nn


class ParameterStore(ABC):
    """Lends weights, gradients and optimizer state by span.

    A provider implements `spans`, `lend`, `lend_state`, `has_gradient` and `zero_gradients`; the
    rest has defaults built on them.

    Attributes:
        optimizer: the run's.
        names: each parameter once with all its qualified names, in the module's order.
        parameters: the same by their first names.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.names: dict[nn.Parameter, tuple[str, ...]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self.names[parameter] = (*self.names.get(parameter, ()), name)
        self.parameters = {names[0]: parameter for parameter, names in self.names.items()}
        self._on_update: list[OnUpdate] = []
        self._on_write: list[Callable[[Span], None]] = []

    if not TYPE_CHECKING:  # where it would hide what is missing
        __getattr__ = missing_in(f"{__name__}.ParameterStore", AttributeError)
    __repr__ = named_by_bytes

    @abstractmethod
    def spans(self) -> list[Span]:
        """Return every span once, tied parameters under their first name."""

    @overload
    def loan(
        self,
        span: Span,
        mode: Mode,
        *,
        of: Literal["weight", "gradient"] = "weight",
        on: torch.device | None = None,
    ) -> AbstractContextManager[torch.Tensor]: ...

    @overload
    def loan(
        self, span: Span, mode: Mode, *, of: Literal["state"], on: torch.device | None = None
    ) -> AbstractContextManager[dict[str, Any]]: ...

    @contextmanager
    def loan(
        self, span: Span, mode: Mode, *, of: Of = "weight", on: torch.device | None = None
    ) -> Iterator[Any]:
        """Lend a span's weight, gradient or optimizer state, on `on` or wherever it lies.

        A weight and a gradient are tensors of shape `span.shape`. Reading a gradient that is not
        there raises KeyError; writing creates it from zeros. The state is a dict of the tensors the
        optimizer keeps for the span, by its own names, and whatever else it keeps beside them;
        empty before the optimizer's first step, which creates it. Written to, it may gain and lose
        entries; left empty, the optimizer's next step begins anew.

        Valid inside the context only. With `"write"`, what was written is kept at the end.
        """
        try:
            if of == "state":
                with self.lend_state(span, mode, on=on) as state:
                    yield state
            else:
                with self.lend(span, mode, of=of, on=on) as tensor:
                    yield tensor
        finally:
            if mode == "write" and of == "weight":
                for callback in tuple(self._on_write):  # one may end itself
                    callback(span)

    @abstractmethod
    def lend(
        self,
        span: Span,
        mode: Mode,
        *,
        of: Literal["weight", "gradient"] = "weight",
        on: torch.device | None = None,
    ) -> AbstractContextManager[torch.Tensor]:
        """Do what `loan` promises for a tensor; only `loan` calls it."""

    @abstractmethod
    def lend_state(
        self, span: Span, mode: Mode, *, on: torch.device | None = None
    ) -> AbstractContextManager[dict[str, Any]]:
        """Do what `loan` promises for the optimizer's state."""

    def on_write(self, callback: Callable[[Span], None]) -> Callable[[], None]:
        """Call `callback(span)` when a weight's loan for writing ends; return what ends that.

        For a plugin that keeps another form of the weights. Ordinary updates write without a loan.
        """
        self._on_write.append(callback)
        return lambda: self._on_write.remove(callback)

    def evictable(self, spans: Collection[Span], *, of: Leaves = "weight") -> Evictable:  # noqa: ARG002 - for a provider
        """Return what of `spans` can leave the device and would free its memory."""
        return Evictable()

    def evict(
        self,
        spans: Collection[Span],  # noqa: ARG002 - for a provider
        *,
        of: Leaves = "weight",  # noqa: ARG002 - as above
        refuge: Refuge | None = None,  # noqa: ARG002 - as above
    ) -> Callable[[], None]:
        """Free the device of what is `evictable` until the function this returns is called.

        It waits in `refuge`, which is RAM by default, and comes back bit for bit as loans left it.
        Loans go on meanwhile. Do not compute with or update evicted weights; evicted state comes
        back by itself before the optimizer steps or loads. A store that cannot evict does nothing.
        """
        return lambda: None

    def keep(self, span: Span, keeper: Keeper) -> Callable[[], None]:  # noqa: ARG002 - for a provider
        """Have `keeper` hold a weight instead of the module, until the returned function is called.

        Loans and updates go through it. Do not compute with the module's own tensor; it still takes
        gradients. ValueError where the weight is part of other memory or already kept or evicted.
        """
        msg = f"this store keeps {span.name!r} in a form of its own"
        raise ValueError(msg)

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

    def close(self) -> None:  # noqa: B027 - nothing is evicted unless a provider can
        """Bring back what is still evicted: the run is over."""

    def on_update(self, callback: OnUpdate) -> Callable[[], None]:
        """Call `callback(span, weight, delta)` on each trainable span after each update.

        One pass over the weights serves all callbacks: averages, drift accumulators, metrics.
        Returns the function that ends it.
        """
        self._on_update.append(callback)
        return lambda: self._on_update.remove(callback)

    def finish_update(self) -> None:
        """Call the callbacks on the spans just updated; a store may have done so in backward."""
        self.notify_update(lambda _span, _weight: None)

    def notify_update(self, change: Change) -> None:
        """Call the callbacks of `on_update` on every trainable span, with the delta of `change`."""
        if not self._on_update:
            return
        with torch.no_grad():
            for span in self.spans():
                if span.trainable:
                    with self.loan(span, "read") as weight:
                        delta = change(span, weight)
                        for callback in self._on_update:
                            callback(span, weight, delta)

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

    def snapshot(self, *, optimizer: bool = False, on: torch.device | str = "cpu") -> Snapshot:
        """Copy every trainable weight (and the optimizer's state) bitwise to the device `on`."""
        self.drain()
        weights = {}
        for span in self.spans():
            if span.trainable:
                with self.loan(span, "read") as weight:
                    weights[span.name] = weight.detach().to(on, copy=True)
        if not optimizer:
            return Snapshot(weights, None)
        with self.optimizer_state() as state:
            return Snapshot(weights, mapped(state, partial(torch.Tensor.to, device=on, copy=True)))

    def restore(self, snapshot: Snapshot) -> None:
        """Put a snapshot back, bit for bit."""
        self.drain()
        for span in self.spans():
            if span.name in snapshot.weights:
                with self.loan(span, "write") as weight, torch.no_grad():
                    weight.copy_(snapshot.weights[span.name])
        if snapshot.optimizer is not None:
            self.load_optimizer_state_dict(mapped(snapshot.optimizer, torch.Tensor.clone))

    @contextmanager
    def optimizer_state(self) -> Iterator[dict[str, Any]]:
        """Lend the optimizer's `state_dict`, each span's state by its loan; valid inside only."""
        self.drain()
        with ExitStack() as loans:
            whole = dict(self.optimizer.state_dict())
            whole["state"] = dict(whole["state"])
            for index, span in self._numbered().items():
                state = loans.enter_context(self.loan(span, "read", of="state"))
                if state:
                    whole["state"][index] = state
            yield whole

    def load_optimizer_state_dict(self, state: dict[str, Any]) -> None:
        """Load it without changing a dtype.

        torch casts loaded state to the parameter's dtype, which would round fp32 moments of bf16
        weights: each tensor is put back as it was saved.
        """
        self.optimizer.load_state_dict(state)
        for index, span in self._numbered().items():
            saved = state["state"].get(index, {})
            if any(isinstance(value, torch.Tensor) for value in saved.values()):
                with self.loan(span, "write", of="state") as loaded:
                    for key, value in saved.items():
                        if isinstance(value, torch.Tensor) and isinstance(
                            loaded.get(key), torch.Tensor
                        ):
                            loaded[key] = value.to(loaded[key].device, copy=True)

    def _numbered(self) -> dict[int, Span]:
        """Return the optimizer's spans by their numbers in its `state_dict`."""
        spans = {self.parameters[span.name]: span for span in self.spans()}
        params = (each for group in self.optimizer.param_groups for each in group["params"])
        return {index: spans[each] for index, each in enumerate(params) if each in spans}
