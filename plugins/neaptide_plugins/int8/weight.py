"""A tensor that replaces a weight and stores int8 codes. Operations get the decoded values."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.backends import mha
from torch.compiler import set_stance
from torch.utils._pytree import tree_map_only

from neaptide.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .scheme import WeightCodes

_computing = ContextVar("computing", default=False)


@contextmanager
def computing(*, quantized: bool = True) -> Iterator[None]:
    """Mark that a model runs: in this context, `detach` of an `Int8Weight` returns an `Int8Weight`.

    Args:
        quantized: whether at least one weight of the model is int8. If so, compiled modules run
            eagerly, because they would be compiled again for the type `Int8Weight`.
    """
    if not quantized:
        yield
        return
    token, fused = _computing.set(True), mha.get_fastpath_enabled()
    try:
        # torch's fused encoder layer casts its weights in an op that gets them decoded, not cast.
        mha.set_fastpath_enabled(False)
        with set_stance("force_eager"):
            yield
    finally:
        mha.set_fastpath_enabled(fused)
        _computing.reset(token)


class Int8Weight(torch.Tensor):
    """A weight with the shape and dtype of `parameter`. Its values are int8 codes on `device`.

    Every operation on the weight gets decoded values. They are freed after the operation. A read
    outside of `computing` (`detach`, a state dict, a deep copy, a pickle) gives the parameter. The
    weight has no gradient and no address, and cannot be written to.
    """

    codes: WeightCodes
    parameter: torch.nn.Parameter
    _is_param = True  # makes isinstance(weight, nn.Parameter) true

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch's own subclasses do

    def __new__(  # noqa: D102 - see __init__
        cls, codes: WeightCodes, parameter: torch.nn.Parameter, device: torch.device
    ) -> Self:
        del codes
        made: Self = torch.Tensor._make_wrapper_subclass(
            cls,
            parameter.shape,
            strides=parameter.stride(),
            dtype=parameter.dtype,
            device=device,
            requires_grad=False,
        )
        return made

    def __init__(
        self, codes: WeightCodes, parameter: torch.nn.Parameter, device: torch.device
    ) -> None:
        del device
        self.codes = codes
        self.parameter = parameter

    def decoded(self) -> torch.Tensor:
        """Return the decoded values on the device, with the weight's strides."""
        values = self.codes.to(self.device).decode(self.dtype)
        if values.stride() == self.stride():
            return values
        home = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device=self.device)
        return home.copy_(values)

    def whole(self) -> torch.nn.Parameter:
        """Return the full weight, for reads outside of computations."""
        return self.parameter

    @property
    def data(self) -> torch.Tensor:
        """The weight, detached."""
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        del value
        raise ModelError(_refused("setting .data"))

    def data_ptr(self) -> int:
        """Raise ModelError: a kernel must not read codes as a weight."""
        msg = (
            "a weight that is int8 in this phase has no address; exclude its module "
            "@ plugins.int8.exclude"
        )
        raise ModelError(msg)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub leaves the op out
        cls, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if op is torch.ops.aten.detach.default:
            weight = args[0]
            if _computing.get():
                return Int8Weight(weight.codes, weight, weight.device)
            return weight.whole().detach()
        if op._schema.is_mutable:
            written = _written(op, args, kwargs or {})
            if any(isinstance(tensor, Int8Weight) for tensor in written):
                raise ModelError(_refused(op))
        args, kwargs = tree_map_only(Int8Weight, Int8Weight.decoded, (args, kwargs or {}))
        return op(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.whole(), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.whole().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]  # torch leaves it so

    def __repr__(self) -> str:  # type: ignore[override]  # torch's takes contents, which are not shown
        return f"Int8Weight(shape={tuple(self.shape)}, dtype={self.dtype}, device={self.device})"


def _refused(what: object) -> str:
    return (
        f"{what} writes to a weight that is int8 in this phase; exclude its module "
        f"@ plugins.int8.exclude"
    )


def _written(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    arguments = op._schema.arguments
    given = {argument.name: value for argument, value in zip(arguments, args, strict=False)}
    given.update(kwargs)
    return [
        given.get(argument.name)
        for argument in arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
