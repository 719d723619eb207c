"""The 8-bit updates of bitsandbytes, as an optimizer whose state any checkpoint holds.

bitsandbytes' own classes keep a table of codes with each parameter, nest the state for FSDP, and
update what the optimizer holds and nothing else. Here the state has codes and scales alone, and the
update may run block by block.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from bitsandbytes import functional

from neaptide_toolkit.optim.foreach_optimizer import STEP, ForeachOptimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

ALGORITHMS = {"adamw": ("adam", 2), "lion": ("lion", 1)}
"""By algorithm, bitsandbytes' name of its kernel, and the number of averages."""
BLOCK = 256
SMALLEST = 4096
"""Tensors with fewer elements keep float32 averages, as in bitsandbytes."""
LEAST_PAGED = 100_000
"""Averages with fewer elements are not paged, as in bitsandbytes."""


class Bitsandbytes8bit(ForeachOptimizer):
    """AdamW or Lion with the 8-bit averages of bitsandbytes (Dettmers et al., 2022).

    With `rounding = "nearest"` the bits are those of bitsandbytes' own `AdamW8bit` and `Lion8bit`.

    Args:
        params: parameters or groups.
        lr: learning rate, a number or a 0-dim tensor.
        algorithm: `"adamw"` or `"lion"`.
        betas: decay rates, in [0, 1).
        eps: added to the square root of the second moment.
        weight_decay: decoupled.
        paged: keep large averages in memory that CUDA moves by pages.
        rounding: of 16-bit weights, `"nearest"` or `"stochastic"`.
        seed: of stochastic rounding.
    """

    separable = True
    """The update of a parameter reads only this parameter, its gradient and its state."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-3,
        algorithm: str = "adamw",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        paged: bool = False,  # noqa: FBT001, FBT002 - an option of torch's optimizers
        rounding: str = "nearest",
        seed: int = 0,
    ) -> None:
        if algorithm not in ALGORITHMS:
            known = ", ".join(ALGORITHMS)
            msg = f"Bitsandbytes8bit: algorithm must be one of {known} (got {algorithm!r})"
            raise ValueError(msg)
        numbers = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        form = {"algorithm": algorithm, "paged": paged, "rounding": rounding, "seed": seed}
        super().__init__(params, {**numbers, **form})

    def new_state(self, param: torch.Tensor, group: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the step, and codes and scales of each average; small tensors: the averages."""
        state = {STEP: torch.zeros((), dtype=torch.float32, device="cpu")}
        small = param.numel() < SMALLEST
        for number in range(1, ALGORITHMS[group["algorithm"]][1] + 1):
            dtype = torch.float32 if small else torch.uint8
            state[f"state{number}"] = _buffer(param, dtype, paged=group["paged"])
            if not small:
                blocks = -(-param.numel() // BLOCK)
                scales = torch.zeros(blocks, dtype=torch.float32, device=param.device)
                state[f"absmax{number}"] = scales
        return state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; return what `closure` returns, if given."""
        for group in self.param_groups:
            for param in group["params"] if group["paged"] else ():
                _page(param, self.state[param])
        return super().step(closure)

    def update(
        self,
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        state: Mapping[str, list[torch.Tensor]],
        group: dict[str, Any],
    ) -> None:
        """Update each parameter by bitsandbytes' kernel."""
        for index, (param, grad) in enumerate(zip(params, grads, strict=True)):
            weight = param.detach().contiguous()
            own = {name: tensors[index] for name, tensors in state.items()}
            _step(weight, grad.to(weight.dtype).contiguous(), own, group)
            if weight.data_ptr() != param.data_ptr():
                param.detach().copy_(weight)
        if group["paged"]:
            torch.cuda.synchronize(params[0].device)  # the host may read what the kernels write

    def out_of_range(self, group: Mapping[str, Any]) -> dict[str, bool]:
        """Return for each option whether its value is out of range."""
        betas = group["betas"]
        return {
            "lr": not 0.0 <= float(group["lr"]) < math.inf,
            "betas": len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas),  # noqa: PLR2004
            "eps": not 0.0 < group["eps"] < math.inf,
            "weight_decay": not 0.0 <= group["weight_decay"] < math.inf,
            "algorithm": group["algorithm"] not in ALGORITHMS,
        }


def _step(
    weight: torch.Tensor,
    grad: torch.Tensor,
    state: Mapping[str, torch.Tensor],
    group: Mapping[str, Any],
) -> None:
    kernel, _ = ALGORITHMS[group["algorithm"]]
    beta1, beta2 = group["betas"]
    step, lr, eps, decay = int(state[STEP]), float(group["lr"]), group["eps"], group["weight_decay"]
    first, second = state["state1"], state.get("state2")
    if "absmax1" not in state:
        functional.optimizer_update_32bit(
            kernel, grad, weight, first, beta1, eps, step, lr, second, beta2, weight_decay=decay
        )
        return
    functional.optimizer_update_8bit_blockwise(
        kernel,
        grad,
        weight,
        first,
        second,
        beta1,
        beta2,
        0.0,
        0.0,
        eps,
        step,
        lr,
        _codes(weight.device, signed=True),
        _codes(weight.device, signed=False) if second is not None else None,
        state["absmax1"],
        state.get("absmax2"),
        weight_decay=decay,
    )


@cache
def _codes(device: torch.device, *, signed: bool) -> torch.Tensor:
    """Return the number that each code stands for."""
    values: torch.Tensor = functional.create_dynamic_map(signed=signed)
    return values.to(device)


def _page(param: torch.Tensor, state: dict[str, Any]) -> None:
    """Move what a checkpoint has loaded back into paged memory."""
    for name in ("state1", "state2"):
        value = state.get(name)
        if value is None or value.numel() < LEAST_PAGED or getattr(value, "is_paged", False):
            continue
        state[name] = _buffer(param, value.dtype, paged=True)
        state[name].copy_(value)


def _buffer(param: torch.Tensor, dtype: torch.dtype, *, paged: bool) -> torch.Tensor:
    if not paged or param.device.type == "meta" or param.numel() < LEAST_PAGED:
        return torch.zeros(param.shape, dtype=dtype, device=param.device)
    buffer: torch.Tensor = functional.get_paged(*param.shape, dtype=dtype, device=param.device)
    functional.fill(buffer, 0)
    return buffer
