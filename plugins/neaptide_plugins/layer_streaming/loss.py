"""A language model's head and cross-entropy, over chunks of tokens: never all logits at once."""

from __future__ import annotations

from typing import Any, Literal

import attrs
import torch
from torch.autograd.function import once_differentiable

_PIECE = 2**22
"""Elements scaled at a time."""


def chunked_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    chunk: int = 1024,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum"] = "mean",
    softcap: float | None = None,
) -> torch.Tensor:
    """Return the cross-entropy of `hidden @ weight.T + bias` in nats, a scalar.

    Logits are computed in the tensors' dtype (autocast's under autocast), everything after them in
    float32 at least, which is the result's dtype. The gradients are computed along with the loss:
    the head runs once, and what is held from forward to backward is of the size of the gradients,
    the weight's in float32. Waits for the device once, to check the labels.

    Args:
        hidden: floating `[..., d]`.
        weight: `[vocabulary, d]`, of the same dtype.
        labels: int64 `[...]`, each a row of `weight` or `ignore_index`. Shifting them by one is
            the caller's part.
        bias: `[vocabulary]`.
        chunk: how many tokens' logits exist at a time.
        ignore_index: the label of tokens that do not count.
        reduction: over the tokens that count; the mean of none is NaN.
        softcap: limits each logit `z` to `softcap * tanh(z / softcap)`.

    Raises:
        ValueError: the arguments do not go together, or a label is no row of `weight`.
    """
    _check(hidden, weight, labels, bias)
    if chunk < 1:
        msg = f"chunk must be at least 1 token (got {chunk})"
        raise ValueError(msg)
    if reduction not in ("mean", "sum"):
        msg = f"reduction must be 'mean' or 'sum' (got {reduction!r})"
        raise ValueError(msg)
    if softcap is not None and not softcap > 0:
        msg = f"softcap must be more than 0, or None for none (got {softcap})"
        raise ValueError(msg)
    _check_labels(labels, ignore_index, len(weight))
    head = _Head(
        chunk=chunk,
        ignore_index=ignore_index,
        softcap=softcap,
        mean=reduction == "mean",
        dtype=torch.get_autocast_dtype(hidden.device.type) if _is_cast(hidden) else hidden.dtype,
    )
    # Inside of a Function it looks as if gradients were off.
    with_gradients = torch.is_grad_enabled()
    loss: torch.Tensor = _CrossEntropy.apply(hidden, weight, bias, labels, head, with_gradients)  # type: ignore[no-untyped-call]  # torch leaves it so
    return loss


@attrs.frozen
class _Head:
    chunk: int
    ignore_index: int
    softcap: float | None
    mean: bool
    dtype: torch.dtype
    """Of the logits as they are computed."""


@attrs.define(eq=False)
class _Sums:
    """What one pass over the tokens adds up; a gradient that nobody wants is None."""

    loss: torch.Tensor
    hidden: torch.Tensor | None
    weight: torch.Tensor | None
    bias: torch.Tensor | None


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        head: _Head,
        with_gradients: bool,  # noqa: FBT001 - apply takes no keywords
    ) -> torch.Tensor:
        wanted = [with_gradients and needed for needed in ctx.needs_input_grad[:3]]
        sums = _sums(hidden, weight, bias, labels, head, wanted)
        count = (labels != head.ignore_index).sum().to(sums.loss.dtype)
        ctx.head, ctx.wanted, ctx.sums, ctx.shape = head, wanted, sums, hidden.shape
        ctx.dtypes = (hidden.dtype, weight.dtype, None if bias is None else bias.dtype)
        ctx.factor = 1 / count.clamp(min=1) if head.mean else torch.ones_like(count)
        ctx.save_for_backward(hidden, weight, bias, labels)
        return sums.loss / count if head.mean else sums.loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # Given away, the sums become the gradients without a copy; a second backward through a
        # graph that was retained has them computed again.
        sums, ctx.sums = ctx.sums, None
        if sums is None:
            hidden, weight, bias, labels = ctx.saved_tensors
            sums = _sums(hidden, weight, bias, labels, ctx.head, ctx.wanted)
        factor = gradient * ctx.factor
        rows, *others = (
            _scaled(total, factor, dtype)
            for total, dtype in zip((sums.hidden, sums.weight, sums.bias), ctx.dtypes, strict=True)
        )
        return (None if rows is None else rows.view(ctx.shape), *others, None, None, None)


def _sums(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    head: _Head,
    wanted: list[bool],
) -> _Sums:
    precise = torch.promote_types(head.dtype, torch.float32)
    rows, targets = hidden.reshape(labels.numel(), hidden.shape[-1]), labels.reshape(-1, 1)
    sums = _Sums(
        torch.zeros((), dtype=precise, device=hidden.device),
        rows.new_empty(rows.shape) if wanted[0] else None,
        weight.new_zeros(weight.shape, dtype=precise) if wanted[1] else None,
        bias.new_zeros(bias.shape, dtype=precise) if wanted[2] and bias is not None else None,
    )
    # What autocast would cast anew for every chunk, and keep, is cast once.
    with torch.autocast(hidden.device.type, enabled=False):
        weight = weight.to(head.dtype)
        bias = None if bias is None else bias.to(head.dtype)
        for start in range(0, len(rows), head.chunk):
            part = slice(start, start + head.chunk)
            tokens = rows[part].to(head.dtype)
            logits = torch.nn.functional.linear(tokens, weight, bias).to(precise)
            sums.loss += _differentiate(logits, targets[part], head, with_gradient=any(wanted))
            if sums.bias is not None:
                sums.bias += logits.sum(0)
            if sums.weight is not None:
                _add_product(sums.weight, logits, tokens)
            if sums.hidden is not None:
                sums.hidden[part] = logits.to(head.dtype) @ weight
            del logits  # before the next chunk's are made
    return sums


def _differentiate(
    logits: torch.Tensor, targets: torch.Tensor, head: _Head, *, with_gradient: bool
) -> torch.Tensor:
    """Return the summed loss of logits `[tokens, vocabulary]`, and put its gradient there."""
    ignored = targets == head.ignore_index
    targets = targets.masked_fill(ignored, 0)
    slope = None
    if head.softcap is not None:
        logits.div_(head.softcap).tanh_()
        slope = (logits * logits).neg_().add_(1) if with_gradient else None
        logits.mul_(head.softcap)
    logits -= logits.amax(1, keepdim=True)
    chosen = logits.gather(1, targets)
    total = logits.exp_().sum(1, keepdim=True)
    loss = (total.log() - chosen).masked_fill_(ignored, 0).sum()
    if with_gradient:
        logits.div_(total).scatter_add_(1, targets, -torch.ones_like(total))
        if slope is not None:
            logits.mul_(slope)
        logits.masked_fill_(ignored, 0)
    return loss


def _add_product(total: torch.Tensor, gradient: torch.Tensor, tokens: torch.Tensor) -> None:
    """Add `gradient.T @ tokens` to the weight's gradient, `[vocabulary, d]`."""
    if tokens.dtype != torch.bfloat16:  # a float16 product may overflow
        total.addmm_(gradient.T, tokens.to(total.dtype))
        return
    narrow = gradient.to(tokens.dtype)
    # No product is larger than the logits.
    height = max(1, gradient.numel() // max(1, tokens.shape[1]))
    for start in range(0, len(total), height):
        part = slice(start, start + height)
        total[part] += narrow[:, part].T @ tokens


def _scaled(
    total: torch.Tensor | None, factor: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor | None:
    """Return `total * factor` in `dtype`, in the memory of `total` where that has it already."""
    if total is None:
        return None
    if total.dtype == dtype == factor.dtype:
        return total.mul_(factor)
    scaled = total if total.dtype == dtype else torch.empty_like(total, dtype=dtype)
    # A 16-bit tensor times a factor takes the factor for one of 16 bits.
    for start in range(0, total.numel(), _PIECE):
        part = slice(start, start + _PIECE)
        scaled.view(-1)[part] = total.view(-1)[part].to(factor.dtype) * factor
    return scaled


def _is_cast(hidden: torch.Tensor) -> bool:
    return hidden.dtype != torch.float64 and torch.is_autocast_enabled(hidden.device.type)


def _check(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, bias: torch.Tensor | None
) -> None:
    shapes = f"hidden {list(hidden.shape)}, weight {list(weight.shape)}"
    if not hidden.dim() or weight.dim() != 2 or hidden.shape[-1] != weight.shape[1]:  # noqa: PLR2004 - a matrix
        msg = f"{shapes}: should be [..., d] and [vocabulary, d]"
        raise ValueError(msg)
    if labels.shape != hidden.shape[:-1] or labels.dtype != torch.int64:
        should = f"torch.int64 {list(hidden.shape[:-1])}, one for each hidden vector"
        msg = f"labels are {labels.dtype} {list(labels.shape)}; should be {should}"
        raise ValueError(msg)
    if bias is not None and bias.shape != weight.shape[:1]:
        msg = f"bias {list(bias.shape)}: should be {list(weight.shape[:1])}, as {shapes} has it"
        raise ValueError(msg)
    given = {"weight": weight, "labels": labels, **({} if bias is None else {"bias": bias})}
    for name, tensor in given.items():
        if tensor.device != hidden.device:
            msg = f"{name} is on {tensor.device}, hidden on {hidden.device}; put them on one"
            raise ValueError(msg)
        if tensor.dtype != hidden.dtype and name != "labels" and not _is_cast(hidden):
            msg = f"{name} is {tensor.dtype}, hidden {hidden.dtype}; convert one, or use autocast"
            raise ValueError(msg)


def _check_labels(labels: torch.Tensor, ignore_index: int, vocabulary: int) -> None:
    wrong = ((labels < 0) | (labels >= vocabulary)) & (labels != ignore_index)
    if wrong.any():
        count, first = int(wrong.sum()), int(labels[wrong][0])
        right = f"0 to {vocabulary - 1}, or ignore_index = {ignore_index}"
        are = f"{count} of {labels.numel()} are not (the first is {first})"
        msg = f"labels must be {right}: {are}; is the tokenizer another model's?"
        raise ValueError(msg)
