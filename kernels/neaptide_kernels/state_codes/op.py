"""Build an op that updates weights and 8-bit state from a reference and a kernel."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_kernels import host_threads
from neaptide_kernels.registry import KERNELS, Op, OpSpec, Provider, define, per_element
from neaptide_kernels.support import triton_version

from . import blocks_of, launching, lists, on_host
from .trials import StepTrials

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from neaptide_kernels.shipping import ShippedKernel


@attrs.frozen(kw_only=True, eq=False)
class CodedOp:
    """The parts of one op with 8-bit state.

    The arguments of the op are, in this order: `params`, `grads`, the lists of codes, the lists of
    scales (each named `<codes>_scale`), `steps`, `lr`, numbers such as `eps`, and `seed`. All
    arguments before `lr` are lists.
    """

    name: str
    summary: str
    codes: Mapping[str, torch.dtype]
    """Dtype of each list of codes, by the list's name."""
    reference: Callable[..., None]
    by_pieces: Callable[..., None]
    """The reference is `by_pieces(*arguments, update=piece)`."""
    piece: Callable[..., tuple[torch.Tensor, ...]]
    """Updates one piece of a tensor and of the tensor's state."""
    kernel: str
    """`"module:function"` of the Triton kernel for `launching.launch`."""
    tried: tuple[float, ...]
    """Values of the op's number arguments (between `lr` and `seed`) in trials."""
    operations: int
    """Arithmetic operations for each element of a weight, about."""
    names: tuple[str, ...] = attrs.field(init=False)
    """Names of the arguments, in order."""

    @names.default
    def _names(self) -> tuple[str, ...]:
        return tuple(signature(self.reference).parameters)

    def define(self) -> Op:
        """Define the op, and add its CPU implementation."""
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
                operations=per_element("params", self.operations),
                agree=lists.disagreements,
            )
        )
        KERNELS.add(
            Provider(
                op=self.name,
                name="numba",
                run=partial(on_host.step, self.by_pieces, self.name),
                supports=host_threads.supports,
                priority=5,
            )
        )
        return op

    def triton(self) -> Provider:
        """Return the provider that the plugin `triton-kernels` adds to a run."""
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
        """Yield descriptions of the op's Triton kernels."""
        module, kernel = self.kernel.split(":")
        return launching.shipped(module, kernel, self.names[self._rate + 1 : -1])

    def new_state(self, param: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the state of a parameter before the first step; all its tensors are 0."""
        number, zeros = param.numel(), param.new_zeros
        return (
            *(zeros(number, dtype=dtype) for dtype in self.codes.values()),
            *(zeros(blocks_of(number), dtype=torch.float32) for _ in self.codes),
            zeros((), dtype=torch.float32),
        )

    def check(self, *arguments: Any) -> None:
        """Raise ValueError for arguments that do not fit each other."""
        lists.check(self.name, self.names, self.codes.values(), arguments)
        numbers = zip(self.names[self._rate + 1 : -1], arguments[self._rate + 1 : -1], strict=True)
        lists.check_numbers(self.name, **dict(numbers))

    def traffic(self, params: Any, grads: Any, *_: Any) -> int:
        """Return the least number of bytes that a step must read and write."""
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
        function = getattr(import_module(module), kernel)  # this import needs Triton
        launching.launch(function, tensors, lr, numbers, seed, **config)
