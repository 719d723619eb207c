"""Gradients of the ensemble: rollouts from remembered states, and a prior near the posterior.

Categories are the modes; their gradients are those of the probabilities ("straight-through"). The
prior of the first step is pulled to the posterior, and the posterior less to the prior ("KL
balancing", Hafner et al., "Mastering Atari with Discrete World Models", 2021).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import torch
from torch.nn import functional

from neaptide_kernels.rssm_rollout import gru_cell

from .models import CATEGORIES, GROUPS, RssmWeights, posterior, prior, read

if TYPE_CHECKING:
    from collections.abc import Sequence

BALANCE = 0.8
"""Share of the divergence that trains the prior; the rest trains the posterior."""
DIVERGENCE = 0.1
"""Factor of the divergence, nats a group, beside the squared errors of standardised targets."""


@attrs.frozen(eq=False)
class RolloutBatch:
    """Steps that members have drawn, each its own: `[members, batch, ...]`."""

    deter: torch.Tensor
    seen: torch.Tensor
    """Standardised inputs of the steps."""
    after: torch.Tensor
    """Standardised inputs of the steps that follow."""
    actions: torch.Tensor
    """`[members, batch, steps, actions]`."""
    targets: torch.Tensor
    """`[members, batch, horizons]`; NaN where they are not known."""


def gradients(of: RssmWeights, batch: RolloutBatch, steps: Sequence[int]) -> list[torch.Tensor]:
    """Return the gradients in the order of the weights; `steps` as for `Models.answers`."""
    with torch.enable_grad():
        leaves = RssmWeights(*(each.detach().requires_grad_() for each in of))
        found = torch.autograd.grad(loss(leaves, batch, steps), leaves)
    return list(found)


def loss(of: RssmWeights, batch: RolloutBatch, steps: Sequence[int]) -> torch.Tensor:
    """Return the sum of the members' losses: each mean squared error / 2, and its divergence."""
    deter, logits = batch.deter, posterior(of, batch.deter, batch.seen)
    total = deter.new_zeros(())
    drives = _own_drives(of, batch.actions)
    known = ~batch.targets.isnan()
    for step in range(1, max(steps) + 1):
        given = drives[:, :, step - 1] + _embedded(of, logits) @ of.mixing
        deter = gru_cell(given, deter, of.recurrent, of.recurrent_bias)
        logits = prior(of, deter)
        if step == 1:
            after = posterior(of, deter, batch.after)
            total = total + DIVERGENCE * balanced(logits, after).sum()
        if step in steps:
            embedded = _embedded(of, logits)
            for number in (place for place, each in enumerate(steps) if each == step):
                there = known[..., number]
                off = read(of, number, deter, embedded) - batch.targets[..., number].nan_to_num()
                squares = torch.where(there, off * off, 0.0).sum(1)
                total = total + 0.5 * (squares / there.sum(1).clamp(min=1)).sum()
    return total


def balanced(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return each member's divergence of the posterior `second` from the prior `first`."""
    pulled = _divergence(second.detach(), first)
    return BALANCE * pulled + (1.0 - BALANCE) * _divergence(second, first.detach())


def _divergence(of: torch.Tensor, from_: torch.Tensor) -> torch.Tensor:
    one, other = (functional.log_softmax(_by_group(each), -1) for each in (of, from_))
    return (one.exp() * (one - other)).sum(-1).mean((1, 2))


def _own_drives(of: RssmWeights, actions: torch.Tensor) -> torch.Tensor:
    own = actions.flatten(1, 2)
    found = torch.baddbmm(of.action_bias[:, None], own, of.action)
    return found.view(*actions.shape[:3], found.shape[2])


def _embedded(of: RssmWeights, logits: torch.Tensor) -> torch.Tensor:
    by_group = _by_group(logits)
    likely = by_group.softmax(-1)
    chosen = functional.one_hot(by_group.argmax(-1), CATEGORIES).to(likely.dtype)
    return (chosen + likely - likely.detach()).flatten(2) @ of.embedding


def _by_group(logits: torch.Tensor) -> torch.Tensor:
    return logits.view(*logits.shape[:2], GROUPS, CATEGORIES)
