"""Sample weights and gradients for trials of ops that update 8-bit state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_kernels.parts import PIECE
from neaptide_kernels.registry import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_SHAPES = ((1,), (17, 15), (256,), (0,), (3, 5, 7), (4500,))


def gradients(dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Yield pairs of a name and a list of gradients.

    The lists cover many magnitudes, a single tensor, inf and NaN, tensors that are not contiguous,
    and large tensors.
    """
    generator = torch.Generator().manual_seed(0)
    several = [_spread(shape, generator).to(dtype=dtype, device=device) for shape in _SHAPES]
    yield "several", several
    yield "one of 2049", [_spread((2049,), generator).to(dtype=dtype, device=device)]
    tiny = _spread((600,), generator) * 1e-25
    tiny[:300] = 0
    yield "tiny and zeros", [tiny.to(dtype=dtype, device=device), torch.zeros_like(several[1])]
    broken = _spread((1000,), generator)
    broken[[10, 300, 700]] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    yield "inf and NaN", [broken.to(dtype=dtype, device=device), several[1]]
    yield "a transposed one", [several[1].t()]
    yield "more than a piece", [_spread((PIECE + 300,), generator).to(dtype=dtype, device=device)]


def weights(dtype: torch.dtype, like: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return random weights with the shapes and strides of the tensors in `like`."""
    generator = torch.Generator().manual_seed(1)
    return [
        torch.empty_like(each, dtype=dtype).copy_(
            torch.randn(each.shape, generator=generator, device="cpu")
        )
        for each in like
    ]


def _spread(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    magnitudes = torch.exp(3 * torch.randn(shape, generator=generator, device="cpu"))
    return torch.randn(shape, generator=generator, device="cpu") * magnitudes


@attrs.frozen
class StepTrials:
    """Makes arguments with which an op with 8-bit state is tried and timed."""

    step: Callable[..., None]
    """The op's reference."""
    new_state: Callable[[torch.Tensor], Sequence[torch.Tensor]]
    numbers: tuple[float, ...]
    """The op's arguments between `lr` and `seed`."""

    def samples(self, device: torch.device) -> Iterator[Sample]:
        """Yield arguments with small tensors, whose state is the result of two steps."""
        for dtype, grad_dtype in (
            (torch.float32, torch.float32),
            (torch.bfloat16, torch.bfloat16),
            (torch.bfloat16, torch.float32),
        ):
            for name, grads in gradients(grad_dtype, device):
                arguments = self._stepped(weights(dtype, grads), grads, times=2)
                yield Sample(name=f"{dtype} by {grad_dtype}, {name}", arguments=arguments)

    def large(self, device: torch.device) -> Iterator[Sample]:
        """Yield arguments with 16 tensors of 2**20 elements; all codes and scales are 0."""
        for dtype in (torch.float32, torch.bfloat16):
            grads = [torch.randn(1 << 20, device=device).to(dtype) for _ in range(16)]
            arguments = self._stepped(weights(dtype, grads), grads, times=0)
            yield Sample(name=f"16 of 1M {dtype}", arguments=arguments)

    def _stepped(
        self, params: list[torch.Tensor], grads: list[torch.Tensor], times: int
    ) -> tuple[Any, ...]:
        state = [list(each) for each in zip(*map(self.new_state, params), strict=True)]
        lr = torch.tensor(1e-2, dtype=torch.float32, device=params[0].device)
        for count in range(1, 1 + times):
            for step in state[-1]:
                step.fill_(count)
            gradient = [(grad.nan_to_num(0, 0, 0) * count).contiguous() for grad in grads]
            self.step(params, gradient, *state, lr)
        for place, step in enumerate(state[-1]):
            step.fill_(3 + 1000 * place)
        return (params, grads, *state, lr, *self.numbers, 5)
