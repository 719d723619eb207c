"""Find out what a model's own code computes: run it on a few numbers, and compare bits.

A class is never recognized by its name. So a class that differs in one rounding is not replaced.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import attrs
import torch
from torch import nn

from neaptide_kernels.gated_unit import ACTIVATIONS
from neaptide_kernels.norms.eager import rms_norm

from .activations import Activation, activation_of
from .trials import (
    TRIED,
    copied,
    drawn,
    inputs,
    modest,
    plainly,
    same_layer,
    same_layer_gradients,
)

_FORMS = ((0.0, True), (0.0, False), (1.0, False))
"""Offset of the weight, and whether to round before the product with it."""
_EPS_NAMES = ("variance_epsilon", "eps", "epsilon", "norm_eps")
_NONE = torch.finfo(torch.float32).eps
"""torch's RMSNorm adds that of the dtype in which it computes, if it has no epsilon."""


@attrs.frozen
class RmsForm:
    """What an RMSNorm computes."""

    eps: float
    offset: float
    narrow_first: bool
    mixed: bool
    """True if this holds for 16-bit inputs with float32 weights, too."""
    eps_name: str
    """The attribute with the epsilon."""
    argument: str
    """The name of the forward's argument; empty if it has none."""

    def holds(self, module: nn.Module) -> bool:
        """Return whether a module still has the epsilon that it had."""
        eps = getattr(module, self.eps_name, None)
        return self.eps == (_NONE if eps is None else eps)


@attrs.frozen
class GatedForm:
    """The names of a gated MLP's parts. `up` is None if the gate's layer computes both."""

    gate: str
    up: str | None
    down: str
    act: str
    dropout: str | None = None
    activation: Activation | None = None
    argument: str = ""
    """The name of the forward's argument; empty if it has none."""


_GATED = (
    GatedForm("gate_proj", "up_proj", "down_proj", "act_fn"),
    GatedForm("gate_proj", "up_proj", "down_proj", "act"),
    GatedForm("w1", "w3", "w2", "act_fn"),
    GatedForm("gate_up_proj", None, "down_proj", "activation_fn"),
    GatedForm("gate_up_proj", None, "down_proj", "act_fn"),
    GatedForm("wi_0", "wi_1", "wo", "act", "dropout"),
)


def rms_form(module: nn.Module) -> RmsForm | None:
    """Return what an RMSNorm computes; None if the module is none, or one of another form."""
    weight = module._parameters.get("weight")  # noqa: SLF001 - not of a parametrization
    name = next((n for n in _EPS_NAMES if isinstance(vars(module).get(n), float)), None)
    if isinstance(module, nn.RMSNorm):
        name = "eps"
    argument = _argument(module)
    if name is None or weight is None or weight.dim() != 1 or argument is None:
        return None
    if list(module.children()) or _has_state(module) or len(list(module.parameters())) > 1:
        return None
    eps = _NONE if getattr(module, name) is None else getattr(module, name)
    for form in _FORMS:
        if all(_same_norm(module, eps, form, dtype, dtype) for dtype in TRIED):
            if not _same_norm_gradients(module, eps, form[0]):
                return None
            mixed = all(_same_norm(module, eps, form, each, torch.float32) for each in TRIED[1:])
            return RmsForm(eps, *form, mixed, name, argument)
    return None


def _same_norm(
    module: nn.Module, eps: float, form: tuple[float, bool], dtype: torch.dtype, kind: torch.dtype
) -> bool:
    with plainly() as random:
        probe, weight = _norm(module, random, kind)
        return all(
            same_layer(probe, x, rms_norm(x, weight, eps, *form)[0])
            for x in inputs(weight.numel(), dtype, random, abs(eps) ** 0.5)
        )


def _norm(
    module: nn.Module, random: torch.Generator, kind: torch.dtype
) -> tuple[nn.Module, torch.Tensor]:
    width = module._parameters["weight"].numel()  # type: ignore[union-attr]  # noqa: SLF001 - checked
    weight = drawn((width,), random)
    weight[1::3] *= 100
    weight[2::3] *= 1e-5
    parameter = nn.Parameter(weight.to(kind))
    return copied(module, parameters={"weight": parameter}), parameter


def _same_norm_gradients(module: nn.Module, eps: float, offset: float) -> bool:
    with plainly() as random:
        probe, weight = _norm(module, random, torch.float32)

        def form(x: torch.Tensor) -> torch.Tensor:
            return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * (weight + offset)

        return all(
            same_layer_gradients(probe, form, x, (weight,)) for x in modest(weight.numel(), random)
        )


def gated_form(module: nn.Module) -> GatedForm | None:
    """Return how a gated MLP is built; None if the module is none, or one of another form."""
    children = dict(module.named_children())
    argument = _argument(module)
    if list(module.parameters(recurse=False)) or _has_state(module) or argument is None:
        return None
    for form in _GATED:
        needed = {form.gate, form.down} | ({form.up} if form.up else set())
        needed |= {form.dropout} if form.dropout else set()
        act = getattr(module, form.act, None)
        if act is None or needed != children.keys() - {form.act}:
            continue
        found = activation_of(act)
        if found is not None:
            form = attrs.evolve(form, activation=found, argument=argument)  # noqa: PLW2901 - the named form
            if all(_same_gated(module, form, act, dtype) for dtype in TRIED):
                return form
    return None


def _same_gated(module: nn.Module, form: GatedForm, act: Any, dtype: torch.dtype) -> bool:
    assert form.activation is not None, "a form with its activation"
    known = ACTIVATIONS[form.activation.name]
    with plainly() as random:
        layers: dict[str, nn.Module] = {
            form.gate: _linear(6, 10 if form.up else 20, dtype, random),
            form.down: _linear(10, 6, dtype, random),
        }
        if form.up:
            layers[form.up] = _linear(6, 10, dtype, random)
        weights = [p for layer in layers.values() for p in layer.parameters()]
        if form.dropout:
            layers[form.dropout] = _TriedDropout()
        if isinstance(act, nn.Module):
            layers[form.act] = copy.copy(act)
        probe = copied(module, modules=layers)

        def plain(x: torch.Tensor) -> torch.Tensor:
            gate = layers[form.gate](x)
            gate, up = (gate, layers[form.up](x)) if form.up else gate.chunk(2, dim=-1)
            hidden = known(gate) * up
            return layers[form.down](layers[form.dropout](hidden) if form.dropout else hidden)  # type: ignore[no-any-return]  # a module's

        if not all(same_layer(probe, x, plain(x)) for x in inputs(6, dtype, random)):
            return False
        return dtype != torch.float32 or all(
            same_layer_gradients(probe, plain, x, weights) for x in modest(6, random)
        )


class _TriedLinear(nn.Linear):
    """Differs from its weight's product, so that code which takes the weight alone is found."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 0.75


class _TriedDropout(nn.Identity):
    """Differs from no dropout, so that code which does not call it is found."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0.5


def _linear(columns: int, rows: int, dtype: torch.dtype, random: torch.Generator) -> nn.Linear:
    layer = _TriedLinear(columns, rows, device="meta")
    layer.weight = nn.Parameter(drawn((rows, columns), random).to(dtype))
    layer.bias = nn.Parameter(drawn((rows,), random).to(dtype))
    return layer


def _argument(module: nn.Module) -> str | None:
    """Return the name of the forward's only argument; None if it takes another number of them."""
    parameters = [*inspect.signature(type(module).forward).parameters.values()][1:]
    if len(parameters) != 1 or parameters[0].kind not in {
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.POSITIONAL_ONLY,
    }:
        return None
    by_name = parameters[0].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    return parameters[0].name if by_name else ""


def _has_state(module: nn.Module) -> bool:
    """Return whether a module has tensors that are no parameters, which may change in a run."""
    tensors = any(isinstance(each, torch.Tensor) for each in vars(module).values())
    return tensors or bool(list(module.buffers(recurse=False)))
