"""The ParameterStore of a model whose blocks stream."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch

from neaptide import ParameterStore, Span
from neaptide.norms import gradient_norm
from neaptide_toolkit.offload import (
    Evictions,
    evictable_state,
    evictable_weights,
    lay_out_state,
    lent_entry,
)
from neaptide_toolkit.offload.gradients import FiniteCheck, norm_of_all, scale_all
from neaptide_toolkit.tensors import tier_of

from .weights.blocks import owners_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from torch import nn

    from neaptide.api.memory import Tier
    from neaptide.api.spans import Evictable, Leaves, Mode, Refuge

    from .streaming import Streaming


class StreamedStore(ParameterStore):
    """Lends tensors of streamed parameters from the host, and every other tensor where it is."""

    def __init__(self, model: nn.Module, streaming: Streaming, device: torch.device) -> None:
        super().__init__(model, streaming.optimizer)
        self.streaming = streaming
        self._device = device
        self._owners = owners_of(streaming.blocks)
        self._rest_norm: torch.Tensor | None = None
        self._evicted = Evictions(streaming.optimizer)
        self._check = FiniteCheck()

    @property
    def stores_gradients(self) -> bool:
        """True if the update follows the backward; False if the backward itself updates blocks."""
        return self.streaming.applying is None

    def spans(self) -> list[Span]:
        """Return one span per parameter, in the order of the model's parameters."""
        return [
            Span(
                first,
                tuple(parameter.shape),
                parameter.dtype,
                self._tier(parameter),
                parameter.requires_grad,
                tuple(tied),
            )
            for parameter, (first, *tied) in self.names.items()
        ]

    def _tier(self, parameter: nn.Parameter) -> Tier:
        away = parameter in self._owners or parameter in self._evicted
        return "host" if away else tier_of(parameter.device, self._device)

    @contextmanager
    def lend(
        self,
        span: Span,
        mode: Mode,
        *,
        of: Literal["weight", "gradient"] = "weight",
        on: torch.device | None = None,
    ) -> Iterator[torch.Tensor]:
        """Lend a view of the host buffer, the parameter's own tensor, or a copy on device `on`."""
        parameter = self.parameters[span.name]
        tensor = self._gradient(span, mode) if of == "gradient" else self._weight(parameter, mode)
        lent = tensor if on is None or on == tensor.device else tensor.to(on)
        yield lent
        if mode == "write":
            if lent is not tensor:
                tensor.copy_(lent)
            if of == "weight" and parameter in self._owners:
                self.streaming.residency.changed(self._owners[parameter][0])

    def _weight(self, parameter: nn.Parameter, mode: Mode) -> torch.Tensor:
        if parameter not in self._owners:
            return parameter.detach()
        block, place = self._owners[parameter]
        block.settle() if mode == "write" else block.written.finish()
        return block.views[place]

    def _gradient(self, span: Span, mode: Mode) -> torch.Tensor:
        parameter = self.parameters[span.name]
        if parameter.grad is None:
            if mode == "read":
                raise KeyError(span.name)
            if parameter in self._owners:
                self.streaming.gradients.host.create(self._owners[parameter][0], parameter)
            else:
                parameter.grad = torch.zeros_like(parameter)
        gradient = parameter.grad
        assert gradient is not None, "it was just created"
        return gradient

    def has_gradient(self, span: Span) -> bool:
        """Return whether the parameter has a `.grad`."""
        return self.parameters[span.name].grad is not None

    def zero_gradients(self) -> None:
        """Drop every gradient. If an update ran inside the backward, end this update."""
        self.streaming.gradients.drop()
        for parameter in self.names:
            parameter.grad = None
        if self.streaming.applying is not None:
            self.streaming.applying.finish(self._rest_norm)
        self._rest_norm = None

    def updated_in_backward(self) -> frozenset[str]:
        """Return the names of the parameters that the backward of this step has updated."""
        applying = self.streaming.applying
        stepped = applying.stepped if applying is not None else ()
        return frozenset(self.names[parameter][0] for parameter in stepped)

    def gradient_norm(self) -> torch.Tensor:
        """Return the global L2 norm, including gradients that were applied in the backward.

        If the optimizer steps on the device, each norm is computed there: a GPU adds in another
        order than a CPU.
        """
        there = self._device if self.streaming.settings.on_device else None
        gradients = self._gradients()
        in_ram = all(one.is_cpu and there in {None, one.device} for one in gradients)
        norm = norm_of_all(gradients) if in_ram else gradient_norm(self, there)
        if self.streaming.applying is None:
            return norm
        self._rest_norm = norm
        return self.streaming.applying.norm(norm)

    def has_nonfinite_gradients(self) -> bool:
        """Check every gradient; before an update by one fused call if all are on the CPU."""
        waits = self.streaming.applying is None
        fails = self._check.fails(self._gradients()) if waits else None
        return super().has_nonfinite_gradients() if fails is None else fails

    def _gradients(self) -> list[torch.Tensor]:
        return [grad for parameter in self.names if (grad := parameter.grad) is not None]

    def scale_gradients(self, factor: float | torch.Tensor) -> None:
        """Multiply the gradients by `factor`, with fused kernels per device."""
        scale_all(self._gradients(), factor)

    def clip_gradients(self, max_norm: float, norm: torch.Tensor) -> None:
        """Clip the gradients by their global norm.

        If the backward updates the blocks, clip only the remaining gradients, as the setting `clip`
        says.
        """
        if self.streaming.applying is None:
            super().clip_gradients(max_norm, norm)
            return
        self.streaming.applying.clip_gradients(self._gradients())

    def step(self) -> None:
        """Update every parameter that has a gradient, streamed or not."""
        self.streaming.step()

    @contextmanager
    def lend_state(
        self, span: Span, mode: Mode, *, on: torch.device | None = None
    ) -> Iterator[dict[str, Any]]:
        """Lend the dict with the optimizer's state of one parameter.

        For a streamed parameter, the tensors in this dict are on the host.
        """
        self._evicted.show()
        self.drain()
        parameter = self.parameters[span.name]
        with lent_entry(self.optimizer, parameter, mode, on) as state:
            yield state
        if mode == "write" and parameter in self._owners and self.streaming.updates is not None:
            self.streaming.updates.adopt(self._owners[parameter][0])

    def evictable(self, spans: Collection[Span], *, of: Leaves = "weight") -> Evictable:
        """Return the storages of parameters that do not stream.

        Streamed parameters are on the host already.
        """
        parameters = [
            each
            for each in dict.fromkeys(self.parameters[span.name] for span in spans)
            if each not in self._owners
        ]
        if of == "state":
            return evictable_state(self.optimizer, parameters, self._evicted)
        return evictable_weights(each for each in parameters if each not in self._evicted)

    def evict(
        self,
        spans: Collection[Span],
        *,
        of: Leaves = "weight",
        refuge: Refuge | None = None,
    ) -> Callable[[], None]:
        """Evict parameters that do not stream.

        Streamed parameters stay on the host, and their weights are not fetched to the device.
        """
        found = self.evictable(spans, of=of)
        if of == "state":
            return self._evicted.state(found, refuge)
        streamed = {self.parameters[span.name] for span in spans} & self._owners.keys()
        fetched = self.streaming.evict(streamed)
        try:
            returned = self._evicted.weights(found, refuge)
        except BaseException:
            fetched()
            raise

        def back() -> None:
            returned()
            fetched()

        return back

    def close(self) -> None:
        """End all evictions."""
        self._evicted.close()

    def drain(self) -> None:
        """Wait until weights and state on the host are up to date."""
        self.streaming.settle()

    def load_optimizer_state_dict(self, state: dict[str, Any], read: Any = None) -> None:
        """Load `state`, and copy it to the host buffers of the streamed optimizer state."""
        self.drain()
        super().load_optimizer_state_dict(state, read)
        lay_out_state(self.optimizer)
        if self.streaming.updates is not None:
            self.streaming.updates.adopt()
