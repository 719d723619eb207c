"""A parameter store for tests. Its weights are unusable outside `with store.loan(…)`: a loan."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal

import attrs
import torch

from neaptide.api.parameters import ParameterStore
from neaptide.plugin import NoConfig, Plugin, PluginSpec, hookimpl
from neaptide.tensors import mapped
from neaptide_toolkit.offload.resident_store import ResidentStore
from neaptide_toolkit.tensors import nested_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn

    from neaptide.api.memory import Tier
    from neaptide.api.spans import Mode, Span

_TIERS: tuple[Tier, ...] = ("host", "device")


class HostileStore(ParameterStore):
    """A store whose weights, gradients and optimizer tensors are NaN outside loans and `compute()`.

    A loan gives a copy, which becomes NaN when the loan ends. The spans (the records of the
    parameters) are in reverse order. On a CPU their tiers alternate between `host` and `device`;
    on another device all are `device`, because plugins compute with weights of the host on the CPU,
    which rounds otherwise. If a plugin's results are bitwise equal to its results with the default
    store, the plugin works with any store.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(model, optimizer)
        self._inner = ResidentStore(model, optimizer)
        self._hidden: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._holders = 0
        self._hide()

    def spans(self) -> list[Span]:
        """Return the spans in reverse order, with tiers that alternate on a CPU."""
        spans = list(reversed(self._inner.spans()))
        if any(one.device.type != "cpu" for one in self.parameters.values()):
            return spans
        return [
            attrs.evolve(span, tier=tier) for span, tier in zip(spans, cycle(_TIERS), strict=False)
        ]

    @contextmanager
    def lend(
        self,
        span: Span,
        mode: Mode,
        *,
        of: Literal["weight", "gradient"] = "weight",
        on: torch.device | None = None,
    ) -> Iterator[torch.Tensor]:
        """Lend a copy of the true value; the copy becomes NaN when the loan ends."""
        with self._inner.loan(span, mode, of=of) as place:
            truth = self._hidden.get(place.data_ptr(), (place, place))[1]
            copy = truth.detach().to(on or truth.device, copy=True)
            yield copy
            if mode == "write":
                truth.copy_(copy)
            _poison(copy)

    @contextmanager
    def lend_state(
        self, span: Span, mode: Mode, *, on: torch.device | None = None
    ) -> Iterator[dict[str, Any]]:
        """Lend copies of the true tensors; the copies become NaN when the loan ends."""
        with self._inner.loan(span, mode, of="state") as entry:
            truths: dict[int, torch.Tensor] = {}

            def copied(place: torch.Tensor) -> torch.Tensor:
                truth = self._hidden.get(place.data_ptr(), (place, place))[1]
                copy = truth.detach().to(on or truth.device, copy=True)
                truths[id(copy)] = truth
                return copy

            before = {key: mapped(value, copied) for key, value in entry.items()}
            lent = dict(before)
            yield lent
            if mode == "write":
                for key in entry.keys() - lent.keys():
                    del entry[key]
                for key, value in lent.items():
                    if value is before.get(key):
                        for copy in nested_tensors(value):
                            truths[id(copy)].copy_(copy)
                    else:
                        # A new value is stored where the old one was, as on the resident store.
                        old = truths.get(id(before.get(key)))
                        home = on if old is None else old.device
                        entry[key] = mapped(value, partial(torch.Tensor.to, device=home, copy=True))
                if not self._holders:
                    self._hide_these(nested_tensors(entry))
            for copy in nested_tensors(lent):
                _poison(copy)

    def has_gradient(self, span: Span) -> bool:
        """Return whether the parameter has a gradient, hidden or not."""
        return self._inner.has_gradient(span)

    def zero_gradients(self) -> None:
        """Drop the gradients and their hidden values."""
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                self._hidden.pop(parameter.grad.data_ptr(), None)
        self._inner.zero_gradients()

    @contextmanager
    def compute(self) -> Iterator[None]:
        """Restore the true values while the module or the optimizer runs."""
        if self._holders == 0:
            self._show()
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            if self._holders == 0:
                self._hide()

    def load_optimizer_state_dict(self, state: dict[str, Any], read: Any = None) -> None:
        """Load the state with the true values restored."""
        with self.compute():
            super().load_optimizer_state_dict(state, read)

    def release(self) -> None:
        """Restore all values at the end of the run."""
        self._show()
        self._holders += 1

    def _tensors(self) -> Iterator[torch.Tensor]:
        for parameter in self.parameters.values():
            yield parameter.data
            if parameter.grad is not None:
                yield parameter.grad
        for state in self.optimizer.state.values():
            yield from nested_tensors(state)

    def _hide(self) -> None:
        self._hide_these(self._tensors())

    def _hide_these(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            if (
                tensor.is_floating_point()
                and tensor.numel()
                and tensor.data_ptr() not in self._hidden
            ):
                # `.data` is used so that autograd's version counters do not change. A real store
                # does the same when it fetches weights for the backward.
                self._hidden[tensor.data_ptr()] = (tensor.data, tensor.data.clone())
                _poison(tensor.data)

    def _show(self) -> None:
        for place, truth in self._hidden.values():
            place.copy_(truth)
        self._hidden.clear()


def _poison(tensor: torch.Tensor) -> None:
    if tensor.is_floating_point():
        tensor.fill_(torch.nan)


@attrs.define(eq=False)
class HostileStorePlugin(Plugin[NoConfig]):
    """A plugin that provides the store."""

    _store: HostileStore | None = attrs.field(init=False, default=None)

    @hookimpl
    def provide_parameters(
        self, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> ParameterStore:
        """Return the store. From now on every tensor is NaN outside a loan of the tensor."""
        self._store = HostileStore(model, optimizer)
        return self._store

    @hookimpl
    def on_run_end(self) -> None:
        """Restore the weights."""
        if self._store is not None:
            self._store.release()


HOSTILE_STORE = PluginSpec(
    name="hostile-store",
    load="neaptide_toolkit.testing.hostile_store:HostileStorePlugin",
    summary="A store whose weights are NaN outside their loans, for tests.",
    claims={"param.storage"},
)
