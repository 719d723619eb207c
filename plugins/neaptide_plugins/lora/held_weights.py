"""Linear layers whose frozen weight is held in fewer bits, and decoded where it is used.

All that is held is in parameters. So it streams, counts and is saved as every other weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from neaptide_kernels.int8 import dequantize_int8, quantize_int8
from neaptide_toolkit.offload.disk.mapped_tensors import MappedTensors

from .targets import is_tied, own_weight

if TYPE_CHECKING:
    from .config import Base

_BLOCK = 64
"""Elements of a weight that share a scale in nf4, as in QLoRA."""
_NESTED_BLOCK = 256
"""Scales that share a scale of their own, as in QLoRA. bitsandbytes has no other number."""


class HeldLinear(nn.Linear):
    """A linear layer that holds its weight in a form of its own.

    Nothing of the decoded weight lives longer than a product: the backward decodes it once more.
    """

    def __init__(self, weight: torch.Tensor, bias: nn.Parameter | None) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        """The dtype of the weight before it was held in this form."""
        self.register_parameter("bias", bias)

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        """The decoded weight `[out, in]`, for code that reads it."""
        return self.decode(self.dtype, *self.held())

    def held(self) -> list[nn.Parameter]:
        """Return the form of the weight."""
        return [one for name, one in self._parameters.items() if one is not None and name != "bias"]

    def decode(self, dtype: torch.dtype, *held: torch.Tensor) -> torch.Tensor:
        """Return the weight `[out, in]` in `dtype`."""
        raise NotImplementedError

    def product(
        self, x: torch.Tensor, bias: torch.Tensor | None, *held: torch.Tensor
    ) -> torch.Tensor:
        """Return the output of the layer; it is called without a graph."""
        return functional.linear(x, self.decode(x.dtype, *held), bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[…, in]` to `[…, out]` in the dtype of `x`, or in that of autocast."""
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        bias = None if self.bias is None else self.bias.to(x.dtype)
        out: torch.Tensor = _HeldProduct.apply(x, bias, self, *self.held())  # type: ignore[no-untyped-call]
        return out


class _HeldProduct(torch.autograd.Function):
    """Saves the form in which a frozen weight is held; the decoded weight does not outlive it."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        layer: HeldLinear,
        *held: torch.Tensor,
    ) -> torch.Tensor:
        """Return the output of `layer`."""
        ctx.layer = layer
        ctx.save_for_backward(*held)
        return layer.product(x, bias, *held)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradient of `x`; a frozen layer has no other."""
        back = None
        if ctx.needs_input_grad[0]:
            back = gradient @ ctx.layer.decode(gradient.dtype, *ctx.saved_tensors)
        return (back, *[None] * (len(ctx.needs_input_grad) - 1))


class Bf16Linear(HeldLinear):
    """Holds the weight rounded to bfloat16."""

    def __init__(self, weight: torch.Tensor, bias: nn.Parameter | None) -> None:
        super().__init__(weight, bias)
        self.values = _frozen(weight.to(torch.bfloat16))

    def decode(self, dtype: torch.dtype, *held: torch.Tensor) -> torch.Tensor:
        """Return the weight `[out, in]` in `dtype`."""
        (values,) = held
        return values.to(dtype)


class Int8Linear(HeldLinear):
    """Holds int8 codes, and a float32 scale for each output."""

    def __init__(self, weight: torch.Tensor, bias: nn.Parameter | None) -> None:
        super().__init__(weight, bias)
        codes, scale, _ = quantize_int8(weight.cpu().contiguous(), self.in_features)
        self.codes, self.scale = (_frozen(one.to(weight.device)) for one in (codes, scale))

    def decode(self, dtype: torch.dtype, *held: torch.Tensor) -> torch.Tensor:
        """Return the weight `[out, in]` in `dtype`."""
        codes, scale = held
        weight: torch.Tensor = dequantize_int8(codes, scale, None, self.in_features, dtype)
        return weight


class Nf4Linear(HeldLinear):
    """Holds 4-bit codes of bitsandbytes, with scales that are quantized once more (QLoRA)."""

    def __init__(self, weight: torch.Tensor, bias: nn.Parameter | None) -> None:
        from bitsandbytes import functional as bnb  # noqa: PLC0415 - it need not be there

        super().__init__(weight, bias)
        codes, state = bnb.quantize_4bit(
            weight.cpu().contiguous(), blocksize=_BLOCK, compress_statistics=True, quant_type="nf4"
        )
        self.codes = _frozen(codes.to(weight.device))
        self.absmax = _frozen(state.absmax.to(weight.device))
        self.nested_absmax = _frozen(state.state2.absmax.to(weight.device))
        self.nested_code = _frozen(state.state2.code.to(weight.device))
        self.nested_offset = _frozen(state.offset.to(weight.device))

    def _state(
        self, absmax: torch.Tensor, nested: torch.Tensor, code: torch.Tensor, offset: torch.Tensor
    ) -> Any:
        from bitsandbytes.functional import QuantState  # noqa: PLC0415 - as above

        return QuantState(
            absmax,
            shape=torch.Size((self.out_features, self.in_features)),
            blocksize=_BLOCK,
            quant_type="nf4",
            dtype=self.dtype,
            offset=offset,
            state2=QuantState(nested, code=code, blocksize=_NESTED_BLOCK, dtype=torch.float32),
        )

    def decode(self, dtype: torch.dtype, *held: torch.Tensor) -> torch.Tensor:
        """Return the weight `[out, in]` in `dtype`."""
        from bitsandbytes import functional as bnb  # noqa: PLC0415 - as above

        codes, *state = held
        weight: torch.Tensor = bnb.dequantize_4bit(codes, self._state(*state))
        return weight.to(dtype)

    def product(
        self, x: torch.Tensor, bias: torch.Tensor | None, *held: torch.Tensor
    ) -> torch.Tensor:
        """Return the output of the layer, computed as bitsandbytes' `Linear4bit` does."""
        import bitsandbytes  # noqa: PLC0415 - as above

        codes, *state = held
        out: torch.Tensor = bitsandbytes.matmul_4bit(
            x, codes.t(), quant_state=self._state(*state), bias=bias
        )
        return out


_FORMS: dict[str, type[HeldLinear]] = {"bf16": Bf16Linear, "int8": Int8Linear, "nf4": Nf4Linear}


def hold(model: nn.Module, layers: dict[str, nn.Module], base: Base) -> int:
    """Replace linear layers of `model` by layers that hold their weights as `base` says.

    Weights that another module has, too, and layers with hooks stay as they are. The codes are
    computed on the CPU, so that they are the same wherever the model is.

    Returns:
        The number of layers replaced.

    Raises:
        ValueError: there is no weight that can be held so.
    """
    if base == "as-is":
        return 0
    count = 0
    with MappedTensors() as mapped:
        for name, layer in layers.items():
            weight = own_weight(layer)
            if weight is None or not weight.is_floating_point() or is_tied(model, weight):
                continue
            if layer._forward_hooks or layer._forward_pre_hooks:  # noqa: SLF001 - they have no other name
                continue
            mapped.own([weight])
            matrix = weight.detach() if isinstance(layer, nn.Linear) else weight.detach().T
            bias = dict(layer.named_parameters(recurse=False)).get("bias")
            new = _FORMS[base](matrix, bias)
            new.train(layer.training)
            model.set_submodule(name, new)
            count += 1
    if not count:
        msg = f"base = {base!r} finds no weight of a linear layer that belongs to this layer alone"
        raise ValueError(msg)
    return count


def _frozen(values: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)
