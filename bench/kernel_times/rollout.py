"""Rollouts of recurrent state-space models in plain torch, with the arguments of Neaptide's op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.rssm_rollout import RolloutCall

from .absent import on_gpu

if TYPE_CHECKING:
    from collections.abc import Callable

    Action = Callable[[], object]


def eager(*arguments: Any) -> Action:
    """Return the loop that is written without a kernel: products with the categories as numbers."""
    call = RolloutCall(*arguments)
    rows, groups = call.stoch.shape[:2], call.stoch.shape[2]
    categories, size = call.head.shape[1] // groups, call.deter.shape[2]

    def roll() -> tuple[torch.Tensor, torch.Tensor]:
        deter, stoch = call.deter, call.stoch
        deters, stochs = [], []
        for drive in call.drive.unbind(2):
            one = torch.nn.functional.one_hot(stoch, categories).view(*rows, -1)
            given = drive + one.to(deter.dtype) @ call.mixing
            own = torch.baddbmm(call.recurrent_bias[:, None], deter, call.recurrent.mT)
            reset, update = (given + own)[..., : 2 * size].sigmoid().split(size, 2)
            new = torch.tanh(given[..., 2 * size :] + reset * own[..., 2 * size :])
            deter = torch.lerp(new, deter, update)
            logits = torch.baddbmm(call.head_bias[:, None], deter, call.head.mT)
            stoch = logits.view(*rows, groups, categories).argmax(-1)
            deters.append(deter)
            stochs.append(stoch)
        return torch.stack(deters, 2), torch.stack(stochs, 2)

    return roll


def in_a_graph(*arguments: Any) -> Action:
    """Return a replay of the eager loop, recorded as a CUDA graph."""
    on_gpu(arguments[0], "A CUDA graph")
    roll = eager(*arguments)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        roll()  # loads the libraries' kernels, which a recording cannot
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        roll()
    return graph.replay
