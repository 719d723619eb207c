"""Parameter groups for Muon. Shape, module and name of a weight decide whether AdamW updates it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.modules.conv import _ConvNd

from .matrices import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_MATRIX = 2
"""Dimensions of a matrix."""


def parameter_groups(
    model: nn.Module,
    *,
    adamw: Sequence[str],
    split: Mapping[str, Sequence[int]],
    stacked: Sequence[str] = (),
    convolutions: bool = True,
) -> list[dict[str, Any]]:
    """Return groups for `Muon`; they contain every trainable parameter once, in the model's order.

    Muon updates weights of two dimensions, `stacked` weights of three dimensions and, with
    `convolutions`, the weights of convolutions that are not grouped. AdamW updates embeddings,
    weights whose name matches a pattern of `adamw`, and all other parameters. A tied
    weight has several names or modules. AdamW updates it if one of these names or modules alone
    would select AdamW.

    Args:
        model: the model to train.
        adamw: patterns of qualified names.
        split: how to divide the rows of a weight into matrices: for each name pattern, the relative
            numbers of rows, such as `(2, 1, 1)`. The first pattern that matches is used.
        stacked: patterns of the names of weights that are stacks of matrices.
        convolutions: whether Muon updates convolutions.

    Raises:
        ValueError: the rows of a weight cannot be divided in the proportions of `split`.
    """
    groups: dict[tuple[str, tuple[int, ...], bool], list[nn.Parameter]] = {}
    for param, places in _places(model).items():
        if not param.requires_grad:
            continue
        names = [name for _, name in places]
        in_stack = param.dim() == _MATRIX + 1 and _fits(names, stacked)
        dims = param.dim() - in_stack
        hidden = all(_is_matrix(param, dims, module, convolutions) for module, _ in places)
        if not hidden or _fits(names, adamw):
            groups.setdefault(("adamw", (1,), False), []).append(param)
            continue
        pattern = next((pattern for pattern in split if _fits(names, [pattern])), None)
        proportions = (1,) if pattern is None else tuple(split[pattern])
        _check_rows(param, param.shape[1 if in_stack else 0], names[0], pattern, proportions)
        groups.setdefault(("muon", proportions, in_stack), []).append(param)
    return [
        {"params": groups[key], "kind": key[0], "split": key[1], "stacked": key[2]}
        for key in sorted(groups, reverse=True)
    ]


def _places(model: nn.Module) -> dict[nn.Parameter, list[tuple[nn.Module, str]]]:
    """Return each parameter once, with a pair (module, qualified name) for each of its uses."""
    places: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, param in module.named_parameters(recurse=False, remove_duplicate=False):
            whole = f"{prefix}.{name}" if prefix else name
            places.setdefault(param, []).append((module, whole))
    return places


def _is_matrix(param: nn.Parameter, dims: int, module: nn.Module, convolutions: bool) -> bool:  # noqa: FBT001 - a setting
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) or not param.numel():
        return False
    if isinstance(module, _ConvNd):
        return convolutions and module.groups == 1 and param.dim() > _MATRIX
    return dims == _MATRIX


def _fits(names: Iterable[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _check_rows(
    param: nn.Parameter, rows: int, name: str, pattern: str | None, proportions: tuple[int, ...]
) -> None:
    try:
        rows_of(rows, proportions)
    except ValueError as error:
        msg = (
            f"{name!r} of shape {list(param.shape)} cannot be split: {error} of {pattern!r}; give "
            f"this weight its own, such as [4, 1, 1] for 4 query heads per key head, or [1]"
        )
        raise ValueError(msg) from None
