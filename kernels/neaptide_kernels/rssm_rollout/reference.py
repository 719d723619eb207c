"""Rollouts of recurrent state-space models in plain torch: the reference for the kernel.

The model is that of Hafner et al., "Learning Latent Dynamics for Planning from Pixels" (2019), with
the categorical states of "Mastering Atari with Discrete World Models" (2021). A rollout uses the
prior alone: nothing is observed. Each stochastic state is the mode of the prior, so a rollout is
deterministic.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from neaptide_kernels.registry import takes


class RolloutCall(NamedTuple):
    """Arguments of `rssm_rollout`: an ensemble of models of the same sizes, and where each starts.

    A model has `size` deterministic units, and `groups` stochastic states of `categories`
    categories each. Numbers have one floating dtype. Gates are in the order of `torch.nn.GRUCell`:
    reset, update, new.
    """

    deter: torch.Tensor
    """`[members, starts, size]`: the deterministic state before the first step."""
    stoch: torch.Tensor
    """int64 `[members, starts, groups]`: the category of each stochastic state, from 0 to
    `categories - 1`."""
    drive: torch.Tensor
    """`[members, starts, steps, 3 * size]`: what each step adds to the gates: biases and known
    inputs."""
    mixing: torch.Tensor
    """`[members, groups * categories, 3 * size]`: what each category adds to the gates."""
    recurrent: torch.Tensor
    """`[members, 3 * size, size]`: weights of the deterministic state, as of `torch.nn.GRUCell`."""
    recurrent_bias: torch.Tensor
    """`[members, 3 * size]`, as of `torch.nn.GRUCell`."""
    head: torch.Tensor
    """`[members, groups * categories, size]`: weights of the prior's logits."""
    head_bias: torch.Tensor
    """`[members, groups * categories]`."""


@takes(RolloutCall)
def rssm_rollout(call: RolloutCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the deterministic and the stochastic states after each step.

    The first are `[members, starts, steps, size]`, the second int64
    `[members, starts, steps, groups]`. A step computes in float32, or in float64 if the arguments
    are; its state is rounded to their dtype. So a rollout can be continued from its last states.
    """
    deter, stoch, drive = call.deter.contiguous(), call.stoch, call.drive
    wide = torch.promote_types(deter.dtype, torch.float32)
    mixing, *others = (each.to(wide) for each in call[3:])
    recurrent, recurrent_bias, head, head_bias = others
    steps, groups = drive.shape[2], stoch.shape[2]
    _look_up(head_bias, stoch)
    deters = deter.new_empty(*deter.shape[:2], steps, deter.shape[2])
    stochs = stoch.new_empty(*stoch.shape[:2], steps, groups)
    for step in range(steps):
        given = drive[:, :, step].to(wide) + mixed(mixing, stoch)
        found = gru_cell(given, deter.to(wide), recurrent, recurrent_bias)
        deter = found.to(deter.dtype)
        logits = torch.baddbmm(head_bias[:, None], deter.to(wide), head.mT)
        stoch = modes(logits, groups)
        deters[:, :, step], stochs[:, :, step] = deter, stoch
    return deters, stochs


def _look_up(head_bias: torch.Tensor, stoch: torch.Tensor) -> None:
    """Have torch refuse categories that do not exist."""
    members, starts, groups = stoch.shape
    by_group = head_bias.reshape(members, 1, groups, head_bias.shape[1] // groups)
    by_group.expand(-1, starts, -1, -1).gather(3, stoch[..., None])


def mixed(mixing: torch.Tensor, stoch: torch.Tensor) -> torch.Tensor:
    """Return the sum of the rows that the categories choose, `[members, starts, 3 * size]`."""
    members, starts, groups = stoch.shape
    places = torch.arange(members * groups, device=stoch.device).view(members, 1, groups)
    rows = places * (mixing.shape[1] // groups) + stoch
    table = mixing.reshape(-1, mixing.shape[2])
    found = torch.nn.functional.embedding_bag(rows.view(-1, groups), table, mode="sum")
    return found.view(members, starts, mixing.shape[2])


def gru_cell(
    given: torch.Tensor, deter: torch.Tensor, recurrent: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Return the next states of GRU cells, as `deter`; `given` adds to their gates."""
    size = deter.shape[2]
    own = torch.baddbmm(bias[:, None], deter, recurrent.mT)
    gates = (given + own)[..., : 2 * size].sigmoid()
    reset, update = gates[..., :size], gates[..., size:]
    new = torch.tanh(given[..., 2 * size :] + reset * own[..., 2 * size :])
    return new + update * (deter - new)


def modes(logits: torch.Tensor, groups: int) -> torch.Tensor:
    """Return the most likely category of each group; the first of equal ones.

    `logits` is `[members, starts, groups * categories]`, the result int64
    `[members, starts, groups]`.
    """
    members, starts, every = logits.shape
    return logits.reshape(members, starts, groups, every // groups).argmax(-1)
