"""What the backward does without a dispatch mode.

The gradient of `values[places]` fills new zeros in place, and gradients of one tensor are added in
place. If a mode is on, PyTorch makes new tensors instead, for the mode may change what is given. A
dry run shall not count these.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from neaptide_toolkit.tensors import nested_tensors

_ATEN = torch.ops.aten
_ZEROS = {_ATEN.new_zeros.default, _ATEN.zeros.default, _ATEN.zeros_like.default}
_ON_ZEROS = {
    _ATEN.index_put.default: _ATEN.index_put_.default,
    _ATEN.index_add.default: _ATEN.index_add_.default,
    _ATEN.scatter.src: _ATEN.scatter_.src,
    _ATEN.scatter.value: _ATEN.scatter_.value,
    _ATEN.scatter_add.default: _ATEN.scatter_add_.default,
}
_OF_A_TENSOR, _OF_ITS_STORAGE, _IN_PYTHON = 4, 2, 4
"""References to a sum of gradients that only autograd's engine holds: one is the engine's, and the
others are of the call itself."""


class Backward:
    """Tells what operations of a backward are done in place without a mode."""

    def __init__(self) -> None:
        self._zeros: int | None = None  # the storage that the last operation made, if of zeros
        self._node: int | None = None  # what computes gradients now
        self._made: set[int] = set()  # storages that it made

    def instead_of(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the operation that runs without a mode."""
        zeros, self._zeros = self._zeros, None
        if torch._C._current_graph_task_id() < 0 or torch.is_grad_enabled():  # noqa: SLF001
            return operation
        self._enter()
        if operation in _ON_ZEROS:
            return _ON_ZEROS[operation] if zeros == _identity(args[0]) else operation
        if operation is _ATEN.add.Tensor and not kwargs:
            # Here, because a call in Python may hold what it gives, and does after a failed
            # compilation of torch: frames are then evaluated in another way.
            in_python = sys.getrefcount(args[0])
            if in_python <= _IN_PYTHON and self._is_a_sum(*args):
                return _ATEN.add_.Tensor
        return operation

    def made(self, operation: Any, result: Any) -> None:
        """Note what an operation made."""
        if operation in _ZEROS:
            self._zeros = _identity(result)
        if torch._C._current_graph_task_id() >= 0:  # noqa: SLF001 - it has no public name
            self._made.update(map(_identity, nested_tensors(result)))

    def _enter(self) -> None:
        node: Any = torch._C._current_autograd_node()  # noqa: SLF001 - as above
        number = None if node is None else node._sequence_nr()  # noqa: SLF001 - as above
        if number != self._node:
            self._node = number
            self._made.clear()

    def _is_a_sum(self, held: Any, more: Any) -> bool:
        """Return whether the engine adds to a gradient of an earlier node, which it alone holds."""
        return (
            isinstance(more, torch.Tensor)
            and self._node is not None
            and (held.shape, held.dtype) == (more.shape, more.dtype)
            and _identity(held) not in self._made
            and _is_dense(held)
            and _is_of_the_engine(held)
        )


def _is_of_the_engine(held: torch.Tensor) -> bool:
    references: int = held._use_count()  # type: ignore[attr-defined]  # noqa: SLF001 - no other way
    of_storage = torch._C._storage_Use_Count(_identity(held))  # noqa: SLF001 - as above
    return bool(references <= _OF_A_TENSOR and of_storage <= _OF_ITS_STORAGE)


def _is_dense(held: torch.Tensor) -> bool:
    step = 1
    for stride, size in sorted(zip(held.stride(), held.shape, strict=True)):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


def _identity(tensor: torch.Tensor) -> int:
    storage: int = tensor.untyped_storage()._cdata  # noqa: SLF001 - the identity
    return storage
