"""Check shapes and dtypes, and check that each label is the number of a row of the weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._subclasses.fake_tensor import FakeTensor

from neaptide.devices import api_of, has_streams
from neaptide_kernels.accelerator import is_capturing

if TYPE_CHECKING:
    from collections.abc import Callable


def check(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    chunk: int,
    softcap: float | None,
    *,
    cast: bool,
) -> None:
    """Raise ValueError if the arguments do not match. With `cast`, their dtypes may differ."""
    if not hidden.dim() or weight.dim() != 2 or hidden.shape[-1] != weight.shape[1]:  # noqa: PLR2004 - a matrix
        msg = f"{_shapes(hidden, weight)}: should be [..., d] and [vocabulary, d]"
        raise ValueError(msg)
    if not weight.shape[0]:
        msg = f"weight {list(weight.shape)}: a vocabulary has at least one row"
        raise ValueError(msg)
    if not (hidden.is_floating_point() and weight.is_floating_point()):
        msg = f"hidden is {hidden.dtype}, weight {weight.dtype}; both should be floating"
        raise ValueError(msg)
    if labels.shape != hidden.shape[:-1] or labels.dtype != torch.int64:
        should = f"torch.int64 {list(hidden.shape[:-1])}, one for each hidden vector"
        msg = f"labels are {labels.dtype} {list(labels.shape)}; should be {should}"
        raise ValueError(msg)
    if bias is not None and bias.shape != weight.shape[:1]:
        should = f"{list(weight.shape[:1])} for {_shapes(hidden, weight)}"
        msg = f"bias {list(bias.shape)}: should be {should}"
        raise ValueError(msg)
    device, dtype = hidden.device, hidden.dtype
    for name, tensor in (("weight", weight), ("labels", labels), ("bias", bias)):
        if tensor is None:
            continue
        if tensor.device != device:
            msg = f"{name} is on {tensor.device}, hidden on {device}; put them on one"
            raise ValueError(msg)
        if tensor is not labels and tensor.dtype != dtype and not cast:
            msg = f"{name} is {tensor.dtype}, hidden {dtype}; convert one, or use autocast"
            raise ValueError(msg)
    numbers(chunk, softcap)


def _shapes(hidden: torch.Tensor, weight: torch.Tensor) -> str:
    return f"hidden {list(hidden.shape)}, weight {list(weight.shape)}"


def numbers(chunk: int, softcap: float | None) -> None:
    """Raise ValueError if `chunk` or `softcap` is out of range."""
    if chunk < 1:
        msg = f"chunk must be at least 1 token (got {chunk})"
        raise ValueError(msg)
    if softcap is not None and not 0 < softcap < float("inf"):
        msg = f"softcap must be more than 0 and finite, or None for none (got {softcap})"
        raise ValueError(msg)


def look_at_labels(labels: torch.Tensor, ignore_index: int, vocabulary: int) -> Callable[[], None]:
    """Start to check the labels; return a function that raises ValueError for a label out of range.

    On a device with streams, the returned function waits only for work that was queued before
    `look_at_labels`. So a caller that queues all work first keeps the device busy during this wait.
    Labels are not checked while torch.compile traces or a CUDA graph is captured. Labels without
    values (fake tensors and tensors on the meta device) are not checked either.
    """
    if not labels.numel() or torch.compiler.is_compiling() or _valueless(labels):
        return lambda: None
    if is_capturing(labels.device.type):
        return lambda: None
    flat = labels.reshape(-1)
    wrong = ((flat < 0) | (flat >= vocabulary)) & (flat != ignore_index)
    first = flat.gather(0, wrong.to(torch.uint8).argmax(0, keepdim=True))
    later, api = has_streams(labels.device), api_of(labels.device)
    found = torch.cat([wrong.sum().view(1), first]).to("cpu", non_blocking=later)
    ready = api.Event() if later else None
    if ready is not None:
        ready.record(api.current_stream(labels.device))

    def complain() -> None:
        if ready is not None:
            ready.synchronize()
        count, label = found.tolist()
        if count:
            right = f"0 to {vocabulary - 1}, or ignore_index = {ignore_index}"
            are = f"{count} of {len(flat)} are not (the first is {label})"
            msg = f"labels must be {right}: {are}; is the tokenizer another model's?"
            raise ValueError(msg)

    return complain


def _valueless(tensor: torch.Tensor) -> bool:
    return tensor.is_meta or isinstance(tensor, FakeTensor)
