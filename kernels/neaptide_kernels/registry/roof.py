"""The least time of a call: its bytes and operations, divided by what a machine does in a second.

The figures are computed. No kernel is faster, and few are as fast. `unvalued` makes the calls:
samples without values, of which only shapes and dtypes are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.overrides import TorchFunctionMode

from neaptide.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .query import Query, TensorFacts
    from .spec import OpSpec, Sample


_FACTORIES = frozenset(
    getattr(torch, name)
    for name in (
        "arange", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn",
        "randperm", "tensor", "zeros",
    )
)  # fmt: skip


@attrs.frozen(kw_only=True)
class Work:
    """What a call must do at least."""

    moved: int
    """Bytes read and written."""
    products: int
    """Floating-point operations of matrix products, in the dtype `dtype`."""
    others: int
    """Other arithmetic operations, in float32; about."""
    dtype: torch.dtype | None
    """The dtype of the first floating tensor; None if there is none."""

    __repr__ = one_line


@attrs.frozen(kw_only=True)
class DeviceSpeed:
    """What a device does in a second."""

    bandwidth: float
    """Bytes of its memory."""
    half: float
    """Operations of products in 16 bits."""
    single: float
    """Operations in float32."""
    launch: float
    """Seconds that each launch takes in addition."""

    __repr__ = one_line


@attrs.frozen(kw_only=True)
class Roof:
    """The least time of a call on a device."""

    seconds: float
    bound: str
    """What takes this time: `"memory"`, `"arithmetic"` or `"launch"`."""

    __repr__ = one_line


def work_of(spec: OpSpec, query: Query, arguments: Sequence[Any]) -> Work:
    """Return the work of a call.

    Args:
        spec: the op. Its `traffic`, `least_flops` or `flops`, and `operations` count; without
            `traffic`, each tensor is read or written once.
        query: the call.
        arguments: all arguments of the call; the tensors may be on the device meta.
    """
    results = [*_tensors(spec.fake(*arguments))]
    if spec.traffic is not None:
        moved = spec.traffic(*arguments)
    else:
        read = sum(_nbytes(facts) for _, facts in query.tensors)
        again = sum(_nbytes(query[name]) for name in spec.mutates)
        moved = read + again + sum(result.nbytes for result in results)
    products = 0
    flops = spec.least_flops or spec.flops
    if flops is not None:
        shapes = [each.shape if isinstance(each, torch.Tensor) else each for each in arguments]
        out = [result.shape for result in results]
        products = flops(*shapes, out_shape=out if len(out) > 1 else out[0])
    others = spec.operations(query) if spec.operations is not None else 0
    floating = (
        facts.dtype
        for _, facts in query.tensors
        if facts is not None and facts.dtype is not None and facts.dtype.is_floating_point
    )
    return Work(moved=moved, products=products, others=others, dtype=next(floating, None))


def roof_of(work: Work, speed: DeviceSpeed) -> Roof:
    """Return the least time of a call: its memory's, or its arithmetic's, and one launch."""
    narrow = work.dtype is not None and work.dtype.itemsize == 2  # noqa: PLR2004 - 16 bits
    memory = work.moved / speed.bandwidth
    arithmetic = work.products / (speed.half if narrow else speed.single)
    arithmetic += work.others / speed.single
    longest = max(memory, arithmetic, speed.launch)
    bound = {memory: "memory", arithmetic: "arithmetic"}.get(longest, "launch")
    return Roof(seconds=max(memory, arithmetic) + speed.launch, bound=bound)


def _nbytes(facts: TensorFacts | None) -> int:
    if facts is None:
        return 0
    return facts.elements * (4 if facts.dtype is None else facts.dtype.itemsize)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


class _OnMeta(TorchFunctionMode):
    """Makes every tensor on the device meta, whatever device is asked for."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function in _FACTORIES:
            kwargs.pop("generator", None)
            kwargs["device"] = "meta"
        elif function is torch.Tensor.to:
            args = tuple("meta" if isinstance(each, torch.device) else each for each in args)
            if "device" in kwargs:
                kwargs["device"] = "meta"
        return function(*args, **kwargs)


def unvalued(spec: OpSpec, device: torch.device) -> Iterator[Sample]:
    """Yield the large samples that an op has for a device, with tensors on the device meta.

    The device need not exist. Nothing is computed, and no memory is needed. But if an op's samples
    are made from values, these are on the CPU.
    """
    found = []
    try:
        with _OnMeta(), torch.no_grad():
            found = list(spec.large(device))
    except (NotImplementedError, RuntimeError):  # a value is asked for; other errors come again
        found = list(spec.large(torch.device("cpu")))
    yield from found
