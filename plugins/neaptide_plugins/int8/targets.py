"""Finds the weights of a model that are to be quantized."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import attrs
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList

from .scheme import DTYPES, Scheme, bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MATRIX = 2
"""Least number of dimensions of a weight that is quantized."""
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_HEADS = ("head", "lm_head", "classifier")
"""A module is a head if the last part of the module's name is in this set."""


@attrs.frozen(eq=False)
class Target:
    """A parameter to quantize, and all modules that have this parameter."""

    name: str
    """The parameter's first qualified name."""
    parameter: nn.Parameter
    sites: tuple[tuple[nn.Module, str], ...]
    """Pairs (module, attribute): all places where modules hold the parameter."""
    channel: int
    """The dim of output channels."""


def find(
    model: nn.Module, include: Sequence[str] | None, exclude: Sequence[str], scheme: Scheme
) -> list[Target]:
    """Return the weights to quantize, in the order of the model's modules.

    Args:
        model: the model; it is not changed.
        scheme: defines the groups that share a scale.
        include: patterns of modules' names. None takes every matrix and convolution except
            embeddings, norms, heads, recurrent layers, and weights tied to one of these. None
            also leaves out weights that would not get smaller. For example, a weight with one
            element per channel would not, because each element has its own scale.
        exclude: patterns of the names of modules that are not quantized.

    Raises:
        ValueError: no weight is left; a pattern in `include` matches no module that can be
            quantized; a pattern in `exclude` matches no module; or the size of a channel is not a
            multiple of the block.
    """
    candidates = list(_candidates(model))
    last = candidates[-1][1] if candidates else None  # usually the output layer
    chosen = {
        id(module)
        for name, module, _, _ in candidates
        if not _matches(name, exclude)
        and (_matches(name, include) if include is not None else not _is_left(name, module, last))
    }
    _check_patterns("include", include or (), [name for name, *_ in candidates])
    _check_patterns("exclude", exclude, [name for name, _ in model.named_modules()])
    sites: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    names: dict[nn.Parameter, str] = {}
    channels: dict[nn.Parameter, int] = {}
    for name, module, attribute, parameter in candidates:
        sites.setdefault(parameter, []).append((module, attribute))
        names.setdefault(parameter, f"{name}.{attribute}" if name else attribute)
        channels.setdefault(parameter, _channel_of(module, attribute))
    others = _used_elsewhere(model, candidates)
    targets = [
        Target(names[parameter], parameter, tuple(found), channels[parameter])
        for parameter, found in sites.items()
        if parameter not in others and all(id(module) in chosen for module, _ in found)
    ]
    sizes = {target: _size(target, scheme) for target in targets}
    if include is None:
        targets = [target for target in targets if sizes[target] < target.parameter.nbytes]
    if not targets:
        msg = (
            f"no weight is left to quantize of {len(sites)} matrices and convolutions in float32, "
            f"bfloat16 or float16 (embeddings, norms, heads, recurrent layers, and weights that "
            f"would not get smaller, are not quantized); name modules in include, or exclude fewer"
        )
        raise ValueError(msg)
    return targets


def _size(target: Target, scheme: Scheme) -> int:
    try:
        return bytes_of(target.parameter.shape, scheme, target.channel)
    except ValueError as error:
        msg = f"{target.name!r}: {error}; set another block, or exclude the module"
        raise ValueError(msg) from error


def _candidates(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
    for name, module in model.named_modules():
        if not _can(module):
            continue
        for attribute, parameter in module._parameters.items():
            if (
                parameter is not None
                and not is_lazy(parameter)
                and parameter.dim() >= _MATRIX
                and parameter.dtype in DTYPES
                and type(parameter.data) is torch.Tensor
                and parameter.layout == torch.strided
                and parameter.numel()
            ):
                yield name, module, attribute, parameter


def _can(module: nn.Module) -> bool:
    # A recurrent layer has its weights in attributes and also in a list.
    kinds = (nn.RNNBase, ParametrizationList)
    return not isinstance(module, kinds) and "norm" not in type(module).__name__.lower()


def _is_left(name: str, module: nn.Module, last: nn.Module | None) -> bool:
    """Return whether a module is an embedding or a head."""
    embeds = isinstance(module, nn.Embedding | nn.EmbeddingBag)
    return embeds or name.rpartition(".")[2] in _HEADS or module is last


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _check_patterns(setting: str, patterns: Sequence[str], names: Sequence[str]) -> None:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            what = "module with a matrix" if setting == "include" else "module"
            known = ", ".join(repr(name) for name in names[:3])
            msg = (
                f"no {what} matches {pattern!r} in {setting}; the model has {known}"
                f"{', …' if len(names) > 3 else ''}"  # noqa: PLR2004 - as many as are shown
            )
            raise ValueError(msg)


def _used_elsewhere(
    model: nn.Module, candidates: Sequence[tuple[str, nn.Module, str, nn.Parameter]]
) -> set[nn.Parameter]:
    """Return the parameters that are also held by a module that cannot be quantized."""
    sites = {(id(module), attribute) for _, module, attribute, _ in candidates}
    return {
        parameter
        for module in model.modules()
        for attribute, parameter in module._parameters.items()
        if parameter is not None and (id(module), attribute) not in sites
    }


def _channel_of(module: nn.Module, attribute: str) -> int:
    # transformers' Conv1D does not transpose its weight before the product, but Linear does.
    turned = isinstance(module, _TRANSPOSED) or type(module).__name__ == "Conv1D"
    return 1 if turned and attribute == "weight" else 0
