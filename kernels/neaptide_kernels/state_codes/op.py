"""An op that steps weights with 8-bit state: all but its arithmetic follows from its arguments."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_kernels.registry import KERNELS, Op, OpSpec, Provider, define
from neaptide_kernels.support import triton_version

from . import blocks_of, compiled, launching, lists
from .trials import StepTrials

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from neaptide_kernels.shipping import ShippedKernel


@attrs.frozen(kw_only=True, eq=False)
class CodedOp:
    """What one op is made of.

    Its arguments are, in this order: lists of `params`, `grads`, codes, scales (`<codes>_scale`
    each) and `steps`; `lr`; numbers; `seed`.
    """

    name: str
    summary: str
    codes: Mapping[str, torch.dtype]
    """The lists of codes, with their dtypes."""
    reference: Callable[..., None]
    by_pieces: Callable[..., None]
    """`by_pieces(*arguments, update=piece)` is the reference."""
    piece: Callable[..., tuple[torch.Tensor, ...]]
    kernel: str
    """`"module:function"`, which `launching.launch` launches."""
    tried: tuple[float, ...]
    """Numbers to try it with."""
    names: tuple[str, ...] = attrs.field(init=False)
    """The arguments, in order."""

    @names.default
    def _names(self) -> tuple[str, ...]:
        return tuple(signature(self.reference).parameters)

    def define(self) -> Op:
        """Add the op, and a provider that compiles its pieces for a CPU."""
        trials = StepTrials(self.reference, self.new_state, self.tried)
        op = define(
            OpSpec(
                name=self.name,
                summary=self.summary,
                reference=self.reference,
                fake=lambda *_: None,
                mutates={"params", *self.names[2 : self._rate - 1]},
                check=self.check,
                samples=trials.samples,
                large=trials.large,
                traffic=self.traffic,
                agree=lists.disagreements,
            )
        )
        # Only where it was measured: its first call takes a C++ compiler's ten seconds.
        KERNELS.add(
            Provider(
                op=self.name,
                name="compiled",
                run=partial(self.by_pieces, update=compiled.whole_pieces(self.piece)),
                supports=compiled.supports,
                priority=-1,
            )
        )
        return op

    def triton(self) -> Provider:
        """Return the provider for the plugin that brings Triton into a run."""
        return Provider(
            op=self.name,
            name="triton",
            run=self._launch,
            supports=lists.supports,
            priority=10,
            version=f"{triton_version()}/1",
            configs=launching.configs,
        )

    def shipped(self) -> Iterator[ShippedKernel]:
        """Yield the launches."""
        module, kernel = self.kernel.split(":")
        return launching.shipped(module, kernel, self.names[self._rate + 1 : -1])

    def new_state(self, param: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return codes, scales and the step count of a parameter before its first step."""
        number, zeros = param.numel(), partial(torch.zeros, device=param.device)
        return (
            *(zeros(number, dtype=dtype) for dtype in self.codes.values()),
            *(zeros(blocks_of(number), dtype=torch.float32) for _ in self.codes),
            zeros((), dtype=torch.float32),
        )

    def check(self, *arguments: Any) -> None:
        """Raise ValueError for arguments that do not go together."""
        lists.check(self.name, self.names, self.codes.values(), arguments)
        numbers = zip(self.names[self._rate + 1 : -1], arguments[self._rate + 1 : -1], strict=True)
        lists.check_numbers(self.name, **dict(numbers))

    def traffic(self, params: Any, grads: Any, *_: Any) -> int:
        """Return the bytes that a step must at least read and write."""
        state = (2 + 8 / 256) * len(self.codes)
        return sum(
            round(param.numel() * (2 * param.element_size() + grad.element_size() + state))
            for param, grad in zip(params, grads, strict=True)
        )

    @property
    def _rate(self) -> int:
        return 3 + 2 * len(self.codes)

    def _launch(self, *arguments: Any, **config: int) -> None:
        module, kernel = self.kernel.split(":")
        tensors, (lr, *numbers, seed) = arguments[: self._rate], arguments[self._rate :]
        function = getattr(import_module(module), kernel)  # it needs Triton
        launching.launch(function, tensors, lr, numbers, seed, **config)
