"""torchao's AdamW, with a state of plain tensors.

torchao keeps each moment in a subclass of Tensor, which a checkpoint without pickle cannot hold and
whose bytes nobody can count. Here the state has the tensors inside, and the subclass exists during
the update alone. The learning rate may be a number, and the update may run block by block.
"""

from __future__ import annotations

import math
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torchao.optim import subclass_4bit, subclass_8bit
from torchao.optim.adam import single_param_adam
from torchao.optim.subclass_4bit import OptimState4bit
from torchao.optim.subclass_8bit import OptimState8bit
from torchao.optim.subclass_fp8 import OptimStateFp8

from neaptide_toolkit.optim.foreach_optimizer import STEP, ForeachOptimizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# torch's cache of compiled graphs; nothing that a user could change.
warnings.filterwarnings("ignore", message="OptimState.* does not implement _stable_hash_for_cach")

MOMENTS = {"exp_avg": True, "exp_avg_sq": False}
"""By moment, whether it has a sign."""
BLOCKS = {"8bit": 256, "4bit": 128, "fp8": 256}
"""torchao's sizes of a block."""
SMALLEST = 4096
"""Tensors with fewer elements, or of no whole number of blocks, keep float32 moments."""


class TorchaoAdamw(ForeachOptimizer):
    """AdamW (Loshchilov and Hutter, 2019) with torchao's moments in 8 bits, 4 bits or fp8.

    With float32 weights the bits are those of torchao's own `AdamW8bit`, `AdamW4bit` and
    `AdamWFp8`.

    Args:
        params: parameters or groups.
        lr: learning rate, a number or a 0-dim tensor.
        kept: `"8bit"`, `"4bit"` or `"fp8"`.
        betas: decays of the first and the second moment, in [0, 1).
        eps: added to the square root of the second moment.
        weight_decay: decoupled.
        block_size: elements that share a scale; None: torchao's size.
        compiled: compile the update, which takes some seconds for each new shape of a weight.
        rounding: of 16-bit weights, `"nearest"` or `"stochastic"`.
        seed: of stochastic rounding.
    """

    separable = True
    """The update of a parameter reads only this parameter, its gradient and its state."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-3,
        kept: str = "8bit",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        block_size: int | None = None,
        compiled: bool = True,  # noqa: FBT001, FBT002 - an option of torch's optimizers
        rounding: str = "nearest",
        seed: int = 0,
    ) -> None:
        betas = (betas[0], betas[1])
        if kept not in BLOCKS:
            msg = f"TorchaoAdamw: kept must be one of {', '.join(BLOCKS)} (got {kept!r})"
            raise ValueError(msg)
        numbers = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        form = {"kept": kept, "block_size": block_size or BLOCKS[kept], "compiled": compiled}
        super().__init__(params, {**numbers, **form, "rounding": rounding, "seed": seed})

    def new_state(self, param: torch.Tensor, group: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the step, and codes and scales of both moments; small tensors: the moments."""
        state = {STEP: torch.zeros((), dtype=torch.float32, device="cpu")}
        size, block, kept = param.numel(), group["block_size"], group["kept"]
        for name in MOMENTS:
            if size < SMALLEST or size % block:
                state[name] = torch.zeros_like(param, dtype=torch.float32)
                continue
            dtype = torch.float8_e4m3fn if kept == "fp8" else torch.uint8
            shape = (size // 2,) if kept == "4bit" else param.shape
            codes = torch.zeros(shape, dtype=torch.uint8, device=param.device).view(dtype)
            scale = torch.zeros(size // block, dtype=torch.float32, device=param.device)
            state[f"{name}.codes"], state[f"{name}.scale"] = codes, scale
        return state

    def update(
        self,
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        state: Mapping[str, list[torch.Tensor]],
        group: dict[str, Any],
    ) -> None:
        """Update each parameter by torchao's function."""
        compute = compiled_adam() if group["compiled"] else single_param_adam
        lr = torch.as_tensor(group["lr"], dtype=torch.float32, device="cpu")
        for index, (param, grad) in enumerate(zip(params, grads, strict=True)):
            own = {name: tensors[index] for name, tensors in state.items()}
            first, second = (_moment(name, own, param, group["kept"]) for name in MOMENTS)
            compute(
                param.detach(),
                grad,
                own[STEP],
                first,
                second,
                None,
                lr,
                *group["betas"],
                group["weight_decay"],
                group["eps"],
                True,
                False,
            )

    def out_of_range(self, group: Mapping[str, Any]) -> dict[str, bool]:
        """Return for each option whether its value is out of range."""
        betas = group["betas"]
        return {
            "lr": not 0.0 <= float(group["lr"]) < math.inf,
            "betas": len(betas) != len(MOMENTS) or not all(0.0 <= beta < 1.0 for beta in betas),
            "eps": not 0.0 < group["eps"] < math.inf,
            "weight_decay": not 0.0 <= group["weight_decay"] < math.inf,
            "kept": group["kept"] not in BLOCKS,
            "block_size": group["block_size"] < 2,  # noqa: PLR2004 - 4-bit codes are packed in pairs
        }


@cache
def compiled_adam() -> Any:
    """Return torchao's function, compiled once for each shape, as torchao does."""
    return torch.compile(single_param_adam, fullgraph=True, dynamic=False)


@cache
def _values(kept: str, device: torch.device, *, signed: bool) -> torch.Tensor:
    """Return the number that each code stands for."""
    module = subclass_8bit if kept == "8bit" else subclass_4bit
    numbers = module.get_qmap_signed() if signed else module.get_qmap_unsigned()
    return torch.tensor(numbers, dtype=torch.float32, device=device)


def _moment(
    name: str, state: Mapping[str, torch.Tensor], param: torch.Tensor, kept: str
) -> torch.Tensor:
    """Return a moment as torchao has it; it shares the memory of the state."""
    if name in state:
        return state[name]
    codes, scale = state[f"{name}.codes"], state[f"{name}.scale"]
    if kept == "fp8":
        return OptimStateFp8(codes, scale, torch.float32)
    signed = MOMENTS[name]
    values = _values(kept, param.device, signed=signed)
    if kept == "8bit":
        return OptimState8bit(codes, scale, values, signed, torch.float32)
    return OptimState4bit(codes, scale, values, signed, param.shape, torch.float32)
