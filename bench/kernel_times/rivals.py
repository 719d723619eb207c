"""Implementations of Neaptide's ops in other libraries, called with the op's arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.chunked_cross_entropy import chunked_cross_entropy
from neaptide_kernels.registry import KERNELS

from .absent import Absent, module, on_gpu
from .attention import RIVALS, backward, forward
from .rollout import eager, in_a_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Action = Callable[[], object]
    Build = Callable[..., Action]


def rivals(op: str, *, compiled: bool) -> Iterator[tuple[str, Build]]:
    """Yield the rivals of an op.

    A rival is another implementation. It is given as a name and a function. The function takes the
    op's arguments and returns the action to time.
    """
    yield from _OF.get(op, ())
    reference = KERNELS.ops[op].spec.reference
    if compiled:
        yield "torch.compile", lambda *arguments: _compiled(reference, arguments)


def _compiled(function: Callable[..., object], arguments: Sequence[Any]) -> Action:
    torch._dynamo.reset()  # noqa: SLF001 - torch's own way to reset
    compiled = torch.compile(function, dynamic=False)
    return lambda: compiled(*arguments)


# -- int8 --------------------------------------------------------------------------------


def _eager_quantize(x: torch.Tensor, group: int, affine: bool, *_: Any) -> Action:  # noqa: FBT001 - as in the op
    if affine or x.numel() % group:
        msg = "its formula is symmetric, for whole groups"
        raise Absent(msg)

    def quantize() -> tuple[torch.Tensor, torch.Tensor]:
        rows = x.view(-1, group).float()
        scale = rows.abs().amax(1, keepdim=True) / 127
        return (rows / scale).round().clamp(-127, 127).to(torch.int8), scale

    return quantize


def _eager_dequantize(
    codes: torch.Tensor, scale: torch.Tensor, _: Any, group: int, dtype: torch.dtype
) -> Action:
    rows = codes.view(-1, group)
    return lambda: (rows.float() * scale[:, None]).to(dtype)


def _bitsandbytes_quantize(x: torch.Tensor, group: int, *_: Any) -> Action:
    functional = module("bitsandbytes.functional")
    if group > 4096:  # noqa: PLR2004 - the library's largest block
        msg = "bitsandbytes supports blocks of up to 4096"
        raise Absent(msg)
    return lambda: functional.quantize_blockwise(x, blocksize=group)


def _torchao_quantize(x: torch.Tensor, group: int, *_: Any) -> Action:
    primitives = module("torchao.quantization.quant_primitives")
    rows = x.view(-1, group)
    block = (1, group)

    def quantize() -> object:
        scale, zero = primitives.choose_qparams_affine(
            rows, primitives.MappingType.SYMMETRIC, block, torch.int8, -127, 127
        )
        return primitives.quantize_affine(rows, block, scale, zero, torch.int8, -127, 127)

    return quantize


# -- optimizers --------------------------------------------------------------------------


def _stepping(make: Callable[[list[torch.Tensor]], torch.optim.Optimizer]) -> Build:
    """Return a function that prepares a step of an optimizer on copies of the op's parameters."""

    def build(params: Sequence[torch.Tensor], *rest: Any) -> Action:
        grads = next(
            value
            for value in rest
            if isinstance(value, list | tuple) and value[0].is_floating_point()
        )
        copies = [torch.nn.Parameter(param.detach().clone()) for param in params]
        for copy, grad in zip(copies, grads, strict=True):
            copy.grad = grad.detach().to(copy.dtype).view_as(copy).clone()
        optimizer = make(copies)  # type: ignore[arg-type]  # parameters are tensors
        return lambda: optimizer.step()  # noqa: PLW0108 - mypy needs the lambda

    return build


def _fused_adamw(params: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-3, fused=True)


def _eager_adamw(params: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-3, foreach=False)


def _foreach_adamw(params: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-3, foreach=True)


def _bitsandbytes(name: str) -> Callable[[list[torch.Tensor]], torch.optim.Optimizer]:
    def make(params: list[torch.Tensor]) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = getattr(module("bitsandbytes.optim"), name)(
            params, lr=1e-3
        )
        return optimizer

    return make


def _torchao_adamw(params: list[torch.Tensor]) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = module("torchao.optim").AdamW8bit(params, lr=1e-3)
    return optimizer


_ADAMW: tuple[tuple[str, Build], ...] = (
    ("eager", _stepping(_eager_adamw)),
    ("torch foreach AdamW", _stepping(_foreach_adamw)),
    ("torch fused AdamW", _stepping(_fused_adamw)),
)


# -- cross-entropy, deltas ---------------------------------------------------------------


def _eager_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    *_: Any,
) -> Action:
    leaves = [one.detach().requires_grad_() for one in (hidden, weight)]

    def both_ways() -> object:
        logits = torch.nn.functional.linear(*leaves, bias)
        loss = torch.nn.functional.cross_entropy(
            logits.float().view(-1, logits.shape[-1]), labels.view(-1)
        )
        return torch.autograd.grad(loss, leaves)

    return both_ways


def _own_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    chunk: int,
    *_: Any,
) -> Action:
    leaves = [one.detach().requires_grad_() for one in (hidden, weight)]
    return lambda: torch.autograd.grad(
        chunked_cross_entropy(*leaves, labels, bias=bias, chunk=chunk), leaves
    )


def _liger_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    *_: Any,
) -> Action:
    on_gpu(hidden, "Liger")
    loss_fn = module("liger_kernel.transformers").LigerFusedLinearCrossEntropyLoss()
    leaves = [one.detach().requires_grad_() for one in (hidden, weight)]
    rows = leaves[0].view(-1, hidden.shape[-1])
    return lambda: torch.autograd.grad(loss_fn(leaves[1], rows, labels.view(-1), bias), leaves)


def _foreach_add(
    params: Sequence[torch.Tensor], deltas: Sequence[torch.Tensor], scale: torch.Tensor, *_: Any
) -> Action:
    params = [param.clone() for param in params]
    factor = float(scale.reshape(-1)[0])
    sets = [deltas[start : start + len(params)] for start in range(0, len(deltas), len(params))]

    def add() -> None:
        for group in sets:
            torch._foreach_add_(params, [one.to(params[0].dtype) for one in group], alpha=factor)

    return add


_OF: dict[str, tuple[tuple[str, Build], ...]] = {
    "quantize_int8": (
        ("eager", _eager_quantize),
        ("bitsandbytes", _bitsandbytes_quantize),
        ("torchao", _torchao_quantize),
    ),
    "dequantize_int8": (("eager", _eager_dequantize),),
    "adam8bit_step": (
        *_ADAMW,
        ("bitsandbytes AdamW8bit", _stepping(_bitsandbytes("AdamW8bit"))),
        ("torchao AdamW8bit", _stepping(_torchao_adamw)),
    ),
    "lion8bit_step": (("bitsandbytes Lion8bit", _stepping(_bitsandbytes("Lion8bit"))),),
    "adamw_split_step": _ADAMW,
    "chunked_cross_entropy": (
        ("neaptide's loss function", _own_loss),
        ("eager", _eager_loss),
        ("Liger", _liger_loss),
    ),
    "apply_delta": (("eager", _foreach_add),),
    "attention": tuple((name, forward(attend)) for name, attend in RIVALS.items()),
    "attention_backward": tuple((name, backward(attend)) for name, attend in RIVALS.items()),
    "rssm_rollout": (("eager", eager), ("CUDA graph of eager", in_a_graph)),
}
