"""ParameterStore: the only access to weights, gradients and optimizer state.

Only the store knows where the tensors are (on the device or in RAM), and whether they are split or
quantized. Code that accesses tensors only by the context manager `loan` works with every store.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable  # noqa: TC003 - the documentation needs it to resolve OnUpdate
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from neaptide.norms import all_finite, gradient_norm, on_device
from neaptide.renamed import with_old_names
from neaptide.tensors import mapped

from .memory import named_by_bytes
from .spans import (
    Change,
    Evictable,
    Keeper,
    Leaves,
    Mode,
    Of,
    OnUpdate,
    OnUpdates,
    Refuge,
    Snapshot,
    Span,
    TensorOf,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from torch import nn


@with_old_names
class ParameterStore(ABC):
    """Lends weights, gradients and optimizer state, one span (parameter or slice) at a time.

    A subclass implements `spans`, `lend`, `lend_state`, `has_gradient` and `zero_gradients`. The
    other methods have defaults that call these five methods.

    Attributes:
        optimizer: the optimizer of the run.
        names: a dict from each parameter to all its qualified names, in the module's order.
        parameters: a dict from the first name of each parameter to the parameter.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.names: dict[nn.Parameter, tuple[str, ...]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self.names[parameter] = (*self.names.get(parameter, ()), name)
        self.parameters = {names[0]: parameter for parameter, names in self.names.items()}
        self._on_update: list[OnUpdate] = []
        self._on_updates: list[OnUpdates] = []
        self._on_write: list[Callable[[Span], None]] = []

    __repr__ = named_by_bytes

    @abstractmethod
    def spans(self) -> list[Span]:
        """Return every span once; the span of a tied parameter has the parameter's first name."""

    @overload
    def loan(
        self, span: Span, mode: Mode, *, of: TensorOf = "weight", on: torch.device | None = None
    ) -> AbstractContextManager[torch.Tensor]: ...

    @overload
    def loan(
        self, span: Span, mode: Mode, *, of: Literal["state"], on: torch.device | None = None
    ) -> AbstractContextManager[dict[str, Any]]: ...

    @contextmanager
    def loan(
        self, span: Span, mode: Mode, *, of: Of = "weight", on: torch.device | None = None
    ) -> Iterator[Any]:
        """Lend a span's weight, gradient or optimizer state inside a `with` block.

        The tensors are on the device `on`; without `on`, they stay where the store keeps
        them. In mode `"write"` the store saves the new values when the block ends. A weight or
        gradient is a tensor of shape `span.shape`. If the gradient is missing, mode `"read"` raises
        KeyError, and mode `"write"` starts from zeros. The state is the optimizer's dict for the
        span; it is empty before the first step. In mode `"write"` the block may add and remove
        entries. If the block leaves the dict empty, the optimizer creates the state again.
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
                for callback in tuple(self._on_write):  # a callback may remove itself
                    callback(span)

    @abstractmethod
    def lend(
        self, span: Span, mode: Mode, *, of: TensorOf = "weight", on: torch.device | None = None
    ) -> AbstractContextManager[torch.Tensor]:
        """Implement `loan` for a weight or gradient; only `loan` calls this method."""

    @abstractmethod
    def lend_state(
        self, span: Span, mode: Mode, *, on: torch.device | None = None
    ) -> AbstractContextManager[dict[str, Any]]:
        """Implement `loan` for the optimizer's state; only `loan` calls this method."""

    def on_write(self, callback: Callable[[Span], None]) -> Callable[[], None]:
        """Call `callback(span)` after each loan of a weight in mode `"write"`.

        Returns a function that removes the callback. Ordinary updates do not call the callback,
        because they write without a loan.
        """
        self._on_write.append(callback)
        return lambda: self._on_write.remove(callback)

    def evictable(self, spans: Collection[Span], *, of: Leaves = "weight") -> Evictable:  # noqa: ARG002 - for a provider
        """Return those storages of `spans` that `evict` can move off the device."""
        return Evictable()

    def evict(
        self,
        spans: Collection[Span],  # noqa: ARG002 - for a provider
        *,
        of: Leaves = "weight",  # noqa: ARG002 - as above
        refuge: Refuge | None = None,  # noqa: ARG002 - as above
    ) -> Callable[[], None]:
        """Move `evictable` tensors off the device; return a function that moves them back.

        `refuge` (default: RAM) holds the evicted tensors. Loans still work, and all values stay
        bitwise equal. Do not compute with evicted weights, and do not update evicted weights. The
        store moves evicted optimizer state back before the optimizer makes a step or loads a state.
        A store that cannot evict does nothing.
        """
        return lambda: None

    def keep(self, span: Span, keeper: Keeper) -> Callable[[], None]:  # noqa: ARG002 - for a provider
        """Store a weight in `keeper`, not in the module; return a function that undoes this."""
        msg = f"this store cannot give {span.name!r} to a keeper; use another parameter store"
        raise ValueError(msg)

    @abstractmethod
    def has_gradient(self, span: Span) -> bool:
        """Return whether a gradient has been accumulated for `span`."""

    @abstractmethod
    def zero_gradients(self) -> None:
        """Drop all gradients."""

    @property
    def stores_gradients(self) -> bool:
        """True if gradients are stored until the update; False if the backward updates weights."""
        return True

    def compute(self) -> AbstractContextManager[None]:
        """Return a context in which the module and the optimizer can use all weights."""
        return nullcontext()

    def updated_in_backward(self) -> frozenset[str]:
        """Return the names of the spans whose weights the backward has already updated."""
        return frozenset()

    def step(self) -> None:
        """Run the optimizer's step on every weight that has a gradient."""
        with self.compute():
            self.optimizer.step()

    def drain(self) -> None:  # noqa: B027 - only a provider has pending updates
        """Finish pending updates, so that every loan has the newest values."""

    def close(self) -> None:  # noqa: B027 - only a provider evicts
        """Move all evicted tensors back to the device, at the end of the run."""

    def on_update(self, callback: OnUpdate) -> Callable[[], None]:
        """Call `callback(span, weight, delta)` for each trainable span after each update.

        Returns a function that removes the callback. One loop over the weights calls all callbacks.
        """
        self._on_update.append(callback)
        return lambda: self._on_update.remove(callback)

    def on_updates(self, callback: OnUpdates) -> Callable[[], None]:
        """Like `on_update`, but before it, and with lists of spans: small tensors cost less."""
        self._on_updates.append(callback)
        return lambda: self._on_updates.remove(callback)

    def finish_update(self) -> None:
        """Call the callbacks of an update, if the backward has not called them."""
        self.notify_update(lambda _span, _weight: None)

    def notify_update(self, change: Change) -> None:
        """Call the callbacks of an update for each trainable span, with `delta` from `change`."""
        with torch.no_grad():
            for span in self.spans() if self._on_update or self._on_updates else ():
                if span.trainable:
                    with self.loan(span, "read") as weight:
                        delta = change(span, weight)
                        for several in self._on_updates:
                            several([span], [weight], [delta])
                        for callback in self._on_update:
                            callback(span, weight, delta)

    def gradient_norm(self) -> torch.Tensor:
        """Return the global L2 norm of all gradients, 0-dim; zero without gradients.

        It has the bits of `torch.nn.utils.get_total_norm`; of float16 gradients it is float32.
        """
        return gradient_norm(self)

    def has_nonfinite_gradients(self) -> bool:
        """Return whether any gradient holds inf or nan; waits for the device."""
        return not (math.isfinite(self.gradient_norm()) or all_finite(self))

    def scale_gradients(self, factor: float | torch.Tensor) -> None:
        """Multiply every gradient by `factor` (a number or a 0-dim tensor), in place."""
        for span in self.spans():
            if self.has_gradient(span):
                with self.loan(span, "write", of="gradient") as gradient:
                    gradient.mul_(on_device(factor, gradient.device))

    def clip_gradients(self, max_norm: float, norm: torch.Tensor) -> None:
        """Scale the gradients, whose global norm is `norm`, to a norm of at most `max_norm`."""
        self.scale_gradients(torch.clamp(max_norm / (norm + 1e-6), max=1.0))

    def snapshot(self, *, optimizer: bool = False, on: torch.device | str = "cpu") -> Snapshot:
        """Copy trainable weights bitwise to `on`; if `optimizer`, also the optimizer's state."""
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
        """Write a snapshot back, bit for bit."""
        self.drain()
        for span in self.spans():
            if span.name in snapshot.weights:
                with self.loan(span, "write") as weight, torch.no_grad():
                    weight.copy_(snapshot.weights[span.name])
        if snapshot.optimizer is not None:
            self.load_optimizer_state_dict(mapped(snapshot.optimizer, torch.Tensor.clone))

    @contextmanager
    def optimizer_state(self) -> Iterator[dict[str, Any]]:
        """Yield the optimizer's `state_dict`. In the context, every span's state is on loan."""
        self.drain()
        with ExitStack() as loans:
            whole = dict(self.optimizer.state_dict())
            whole["state"] = dict(whole["state"])
            for index, span in self._numbered().items():
                state = loans.enter_context(self.loan(span, "read", of="state"))
                if state:
                    whole["state"][index] = state
            yield whole

    def load_optimizer_state_dict(self, state: dict[str, Any], read: Any = None) -> None:
        """Load the optimizer's `state_dict`; each tensor keeps its saved dtype.

        The optimizer's own method would cast state to the parameter's dtype, fp32 to bf16.
        Tensors of a parameter may be stand-ins without memory: `read` returns a new tensor for a
        stand-in, and any other tensor as it is.
        """
        spans = self._numbered()
        if read is not None:
            for index in state["state"].keys() - spans.keys():  # no parameters of the model
                state["state"][index] = mapped(state["state"][index], read)
        self.optimizer.load_state_dict(state)
        for index, span in spans.items():
            saved = state["state"].get(index, {})
            if any(isinstance(value, torch.Tensor) for value in saved.values()):
                with self.loan(span, "write", of="state") as loaded:
                    for key, value in saved.items():
                        held = loaded.get(key)
                        if isinstance(value, torch.Tensor) and isinstance(held, torch.Tensor):
                            new = value if read is None else read(value)
                            loaded[key] = new.to(held.device, copy=new is value)

    def _numbered(self) -> dict[int, Span]:
        """Return the spans by their parameter index in the optimizer's `state_dict`."""
        spans = {self.parameters[span.name]: span for span in self.spans()}
        params = (each for group in self.optimizer.param_groups for each in group["params"])
        return {index: spans[each] for index, each in enumerate(params) if each in spans}
