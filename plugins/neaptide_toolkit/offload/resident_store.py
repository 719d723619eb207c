"""The default parameter store."""

from __future__ import annotations

from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

import torch

from neaptide.api.parameters import ParameterStore
from neaptide.api.spans import Change, Evictable, Keeper, Leaves, Mode, Refuge, Span
from neaptide_toolkit.tensors import tier_of

from .evicted import Evictions, is_whole
from .gradients import ONE, FiniteCheck, lay_out, norm_of_all, scale_all
from .lending import evictable_state, evictable_weights, lay_out_state, lent_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from torch import nn


_Groups = tuple["list[Span]", "list[tuple[list[Span], list[nn.Parameter]]]"]
_FACTS = attrgetter("requires_grad", "dtype", "device", "shape")
_VALUES = attrgetter("data")  # sooner than `detach`
_TOGETHER = 32 << 20
"""Bytes of weights that a callback of an update gets together; it bounds its temporary memory."""


class ResidentStore(ParameterStore):
    """The default store: weights, gradients and optimizer state stay on the module's device."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(model, optimizer)
        self._check = FiniteCheck()
        self._spans: dict[nn.Parameter, tuple[Any, Span | None]] = dict.fromkeys(
            self.names, (None, None)
        )
        self._known: tuple[list[Any], list[Span]] = ([], [])
        self._groups: _Groups = ([], [])
        self._evicted = Evictions(optimizer)
        self._kept: dict[nn.Parameter, Keeper] = {}

    def spans(self) -> list[Span]:
        """Return one span per parameter, in the order of the module."""
        return [*self._present()]

    def _present(self) -> list[Span]:
        # Called after every update, so a span is cached until one of its facts changes.
        facts = [] if self._evicted else list(map(_FACTS, self.names))
        if facts and facts == self._known[0]:
            return self._known[1]
        evicted = self._evicted or ()  # nearly always none
        device = next((each for each in self.names if each not in evicted), ONE).device
        found: list[Span] = []
        for parameter, (before, span) in self._spans.items():
            now = (
                parameter.requires_grad,
                parameter.dtype,
                parameter.device,
                device,
                parameter.shape,
                parameter in evicted,
            )
            if span is None or now != before:
                span = self._span(parameter, device)  # noqa: PLW2901 - the new one
                self._spans[parameter] = (now, span)
            found.append(span)
        self._known = facts, found
        return found

    def _span(self, parameter: nn.Parameter, device: torch.device) -> Span:
        first, *tied = self.names[parameter]
        away = parameter in self._evicted
        return Span(
            first,
            tuple(parameter.shape),
            parameter.dtype,
            "host" if away else tier_of(parameter.device, device),
            parameter.requires_grad,
            tuple(tied),
        )

    @contextmanager
    def lend(
        self,
        span: Span,
        mode: Mode,
        *,
        of: Literal["weight", "gradient"] = "weight",
        on: torch.device | None = None,
    ) -> Iterator[torch.Tensor]:
        """Lend the tensor, or a copy on device `on`. A loan for writing writes the copy back."""
        parameter = self.parameters[span.name]
        if of == "gradient":
            if parameter.grad is None:
                if mode == "read":
                    raise KeyError(span.name)
                parameter.grad = torch.zeros_like(parameter)
            tensor = parameter.grad
        else:
            tensor = self._weight(parameter)
        lent = tensor if on is None else tensor.to(on)
        yield lent
        if mode == "write":
            if lent is not tensor:
                tensor.copy_(lent)
            if of == "weight" and parameter in self._kept:
                self._kept[parameter].write(tensor)

    def _weight(self, parameter: nn.Parameter) -> torch.Tensor:
        keeper = self._kept.get(parameter)
        return parameter.detach() if keeper is None else keeper.read()

    @contextmanager
    def lend_state(
        self, span: Span, mode: Mode, *, on: torch.device | None = None
    ) -> Iterator[dict[str, Any]]:
        """Lend the optimizer's state of a parameter; see `lent_entry`."""
        self._evicted.show()
        with lent_entry(self.optimizer, self.parameters[span.name], mode, on) as state:
            yield state

    def load_optimizer_state_dict(self, state: dict[str, Any], read: Any = None) -> None:
        """Load `state`; what has a weight's shape gets the weight's strides."""
        super().load_optimizer_state_dict(state, read)
        lay_out_state(self.optimizer)

    def evictable(self, spans: Collection[Span], *, of: Leaves = "weight") -> Evictable:
        """Return the storages that only the weights (or the optimizer state) of `spans` use."""
        parameters = dict.fromkeys(self.parameters[span.name] for span in spans)
        if of == "state":
            return evictable_state(self.optimizer, parameters, self._evicted)
        return evictable_weights(
            each for each in parameters if each not in self._evicted and each not in self._kept
        )

    def evict(
        self,
        spans: Collection[Span],
        *,
        of: Leaves = "weight",
        refuge: Refuge | None = None,
    ) -> Callable[[], None]:
        """Move the `evictable` storages to the refuge; other storages stay on the device."""
        send = self._evicted.state if of == "state" else self._evicted.weights
        return send(self.evictable(spans, of=of), refuge)

    def close(self) -> None:
        """Move all evicted tensors back."""
        self._evicted.close()

    def keep(self, span: Span, keeper: Keeper) -> Callable[[], None]:
        """Remove the weight from the parameter; from now on `keeper` stores the weight.

        The parameter becomes one NaN, expanded to the old shape.
        """
        parameter = self.parameters[span.name]
        if parameter in self._evicted or parameter in self._kept or not is_whole(parameter):
            msg = f"{span.name!r} shares its memory, or is already evicted or kept"
            raise ValueError(msg)
        parameter.data = _hollow(parameter)
        self._kept[parameter] = keeper
        self._groups = ([], [])

        def back() -> None:
            if self._kept.get(parameter) is keeper:  # a second call does nothing
                parameter.data = keeper.read()
                del self._kept[parameter]
                self._groups = ([], [])

        return back

    def step(self) -> None:
        """Run the optimizer's step; during the step, the keepers' weights are in device memory."""
        lent: list[tuple[nn.Parameter, Keeper]] = []
        try:
            for parameter, keeper in self._kept.items():
                parameter.data = keeper.read()
                lent.append((parameter, keeper))
            for group in self.optimizer.param_groups:
                if group.get("fused"):
                    lay_out(group["params"])
            super().step()
        finally:
            for parameter, keeper in lent:
                keeper.write(parameter.detach())
                parameter.data = _hollow(parameter)

    def finish_update(self) -> None:
        """Call the callbacks of an update, for small weights together and without loans."""
        if self._on_update or self._on_updates:
            with torch.no_grad():
                for spans, parameters in self._together():
                    weight_of = self._weight if self._kept else _VALUES
                    weights = list(map(weight_of, parameters))
                    self._tell(spans, weights, [None] * len(spans))
                    del weights  # a keeper's weight is a new tensor

    def _together(self) -> list[tuple[list[Span], list[nn.Parameter]]]:
        """Return neighbours of one dtype and device: up to `_TOGETHER` bytes, or one larger weight.

        Weights of keepers are alone.
        """
        now = self._present()
        before, groups = self._groups
        if before is now or before == now:  # a span is compared by its identity
            return groups
        groups, kind, left = [], None, 0
        for span, parameter in zip(now, self.names, strict=True):
            if span.trainable:
                own = (span.dtype, parameter.device, parameter in self._kept)
                left -= span.bytes
                if own != kind or own[-1] or left < 0:
                    groups.append(([], []))
                    kind, left = own, _TOGETHER - span.bytes
                groups[-1][0].append(span)
                groups[-1][1].append(parameter)
        self._groups = now, groups
        return groups

    def notify_update(self, change: Change) -> None:
        """Call the callbacks for each trainable weight, without a loan, one delta at a time."""
        heard = self._on_update or self._on_updates
        with torch.no_grad():
            for span, parameter in zip(self.spans(), self.names, strict=True) if heard else ():
                if span.trainable:
                    weight = self._weight(parameter)
                    self._tell([span], [weight], [change(span, weight)])

    def _tell(self, *lists: Any) -> None:
        """Call the callbacks with lists of spans, weights and deltas."""
        for several in self._on_updates:  # first: they have the update, or none of it
            several(*lists)
        for span, weight, delta in zip(*lists, strict=True) if self._on_update else ():
            for callback in self._on_update:
                callback(span, weight, delta)

    def has_gradient(self, span: Span) -> bool:
        """Return whether the parameter has a `.grad`."""
        return self.parameters[span.name].grad is not None

    def zero_gradients(self) -> None:
        """Set every `.grad` to None."""
        for parameter in self.names:
            parameter.grad = None

    def gradient_norm(self) -> torch.Tensor:
        """Return the global L2 norm, by torch's fused kernels where they can give it."""
        return norm_of_all(self._gradients())

    def has_nonfinite_gradients(self) -> bool:
        """Check every gradient: on a CPU by one fused call, on other devices by the norm."""
        fails = self._check.fails(self._gradients())
        return super().has_nonfinite_gradients() if fails is None else fails

    def _gradients(self) -> list[torch.Tensor]:
        return [grad for parameter in self.names if (grad := parameter.grad) is not None]

    def scale_gradients(self, factor: float | torch.Tensor) -> None:
        """Multiply the gradients by `factor`, with fused kernels per device."""
        scale_all(self._gradients(), factor)


def _hollow(parameter: nn.Parameter) -> torch.Tensor:
    """Return one NaN, expanded to the parameter's shape, so that any computation gives NaN."""
    one = torch.full((), torch.nan, dtype=parameter.dtype, device=parameter.device)
    return one.expand(parameter.shape)
