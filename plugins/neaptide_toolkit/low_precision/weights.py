"""Choose the weights whose matrix products are computed in 8 bits."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import attrs
from torch import nn

from neaptide.text import one_line

from .fp8 import MULTIPLE

if TYPE_CHECKING:
    from collections.abc import Sequence

_MATRIX = 2


@attrs.frozen(eq=False)
class Chosen:
    """The chosen matrices, and the number of excluded matrices by reason."""

    names: dict[nn.Parameter, str]
    """Chosen parameters, with their qualified names."""
    left_out: dict[str, int]
    """Number of excluded matrices, by reason."""
    largest: int
    """Elements of the largest chosen matrix."""

    __repr__ = one_line


def choose_weights(
    model: nn.Module,
    *,
    include: Sequence[str],
    exclude: Sequence[str],
    min_elements: int,
) -> Chosen:
    """Choose the 2-D parameters of `model` whose products are to be computed in 8 bits.

    The weights of embeddings are excluded for two reasons. An output head may share the weight of
    an embedding, and the products of a head are the most sensitive to rounding. Also, a part of
    the gradient of an embedding comes from the lookup and not from a product. Matrices whose size
    no 8-bit kernel accepts are excluded, too.

    Args:
        model: the model with these parameters.
        include: patterns of qualified names, such as `blocks.*.weight`; a chosen parameter matches
            at least one pattern.
        exclude: patterns; a parameter that matches any of these patterns is not chosen.
        min_elements: least number of elements of a chosen matrix.

    Raises:
        ValueError: a pattern of `include` matches no parameter.
    """
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
    }
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.ndim == _MATRIX and parameter.is_floating_point():
            names.setdefault(parameter, []).append(name)
    _check_patterns(include, [name for name, _ in model.named_parameters(remove_duplicate=False)])
    chosen: dict[nn.Parameter, str] = {}
    left_out: dict[str, int] = {}
    for parameter, known in names.items():
        reason = _reason(parameter, known, include, exclude, min_elements)
        if id(parameter) in embeddings:
            reason = "embedding"
        if reason is None:
            chosen[parameter] = known[0]
        else:
            left_out[reason] = left_out.get(reason, 0) + 1
    largest = max((parameter.numel() for parameter in chosen), default=0)
    return Chosen(chosen, left_out, largest)


def _check_patterns(patterns: Sequence[str], names: Sequence[str]) -> None:
    for pattern in patterns:
        if names and not any(fnmatchcase(name, pattern) for name in names):
            msg = f"no parameter matches {pattern!r} in include; one name is {names[0]!r}"
            raise ValueError(msg)


def _reason(
    parameter: nn.Parameter,
    names: Sequence[str],
    include: Sequence[str],
    exclude: Sequence[str],
    min_elements: int,
) -> str | None:
    if type(parameter) is not nn.Parameter:
        return f"a {type(parameter).__name__}"
    if not _any_matches(names, include):
        return "not included"
    if _any_matches(names, exclude):
        return "excluded"
    if parameter.numel() < min_elements:
        return f"smaller than {min_elements} elements"
    if any(size % MULTIPLE for size in parameter.shape):
        return f"a size that is not a multiple of {MULTIPLE}"
    return None


def _any_matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
