"""An ensemble of recurrent state-space models (Hafner et al., 2019, 2021), float32 on the host.

Each model has 256 deterministic units, a GRU cell, and 32 stochastic states of 32 categories. The
prior tells the categories from the units alone; the posterior sees the inputs of a step, too. Both
and the input of the GRU cell go through narrow layers, which keeps weights and gradients small.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import attrs
import torch

from neaptide_kernels.counter_random import uniform
from neaptide_kernels.rssm_rollout import RolloutCall, gru_cell, mixed, modes, rssm_rollout

if TYPE_CHECKING:
    from collections.abc import Sequence

UNITS, GROUPS, CATEGORIES = 256, 32, 32
LOGITS = GROUPS * CATEGORIES
ACTIONS = 2
"""Numbers that a step knows beforehand: the changes of log(learning done) and of the schedule."""
NARROW = 64
"""Width of the narrow layers."""


class RssmWeights(NamedTuple):
    """Weights of an ensemble; the first dimension of each tensor is the member."""

    embedding: torch.Tensor
    """`[members, logits, narrow]`: what a category becomes."""
    mixing: torch.Tensor
    """`[members, narrow, 3 * units]`: from the sum of the embeddings to the gates."""
    recurrent: torch.Tensor
    """`[members, 3 * units, units]`."""
    recurrent_bias: torch.Tensor
    action: torch.Tensor
    """`[members, actions, 3 * units]`."""
    action_bias: torch.Tensor
    prior: torch.Tensor
    """`[members, units, narrow]`, then `prior_logits` `[members, narrow, logits]`."""
    prior_logits: torch.Tensor
    prior_bias: torch.Tensor
    posterior: torch.Tensor
    """`[members, units + inputs, narrow]`, then `posterior_logits` `[members, narrow, logits]`."""
    posterior_narrow_bias: torch.Tensor
    posterior_logits: torch.Tensor
    posterior_bias: torch.Tensor
    readout: torch.Tensor
    """`[members, horizons, units + narrow]`: from a state to the corrections."""
    readout_bias: torch.Tensor


def drawn_weights(members: int, inputs: int, horizons: int, seed: int) -> RssmWeights:
    """Return the first weights. The readout is zeros, so untrained models answer 0."""
    gates = 3 * UNITS
    shapes: dict[str, tuple[tuple[int, ...], float]] = {
        "embedding": ((LOGITS, NARROW), GROUPS**-0.5),
        "mixing": ((NARROW, gates), NARROW**-0.5),
        "recurrent": ((gates, UNITS), UNITS**-0.5),
        "recurrent_bias": ((gates,), 0.0),
        "action": ((ACTIONS, gates), 1.0),
        "action_bias": ((gates,), 0.0),
        "prior": ((UNITS, NARROW), UNITS**-0.5),
        "prior_logits": ((NARROW, LOGITS), 1.0),
        "prior_bias": ((LOGITS,), 0.0),
        "posterior": ((UNITS + inputs, NARROW), (UNITS + inputs) ** -0.5),
        "posterior_narrow_bias": ((NARROW,), 0.0),
        "posterior_logits": ((NARROW, LOGITS), 4.0 * NARROW**-0.5),
        "posterior_bias": ((LOGITS,), 0.0),
        "readout": ((horizons, UNITS + NARROW), 0.0),
        "readout_bias": ((horizons,), 0.0),
    }
    made, first = {}, 0
    for name, (shape, size) in shapes.items():
        count = members * math.prod(shape)
        numbers = uniform(seed, torch.arange(first, first + count, device="cpu"))
        made[name] = ((2.0 * numbers - 1.0) * 3.0**0.5 * size).reshape(members, *shape)
        first += count
    return RssmWeights(**made)


@attrs.define(eq=False)
class Models:
    """What the ensemble does between its gradient steps. `starts` are independent states.

    States are `[members, starts, units]` and the numbers of categories `[members, starts, groups]`.
    """

    weights: RssmWeights

    def advanced(
        self, deter: torch.Tensor, stoch: torch.Tensor, action: torch.Tensor
    ) -> torch.Tensor:
        """Return the units after a step whose action, `[starts, actions]`, is known."""
        of = self.weights
        given = driven(of, action) + mixed(of.embedding, stoch) @ of.mixing
        return gru_cell(given, deter, of.recurrent, of.recurrent_bias)

    def observed(self, deter: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Return the categories of the posterior, given standardised inputs `[starts, inputs]`."""
        return modes(posterior(self.weights, deter, seen), GROUPS)

    def answers(
        self, deter: torch.Tensor, stoch: torch.Tensor, actions: torch.Tensor, steps: Sequence[int]
    ) -> torch.Tensor:
        """Return corrections `[members, starts, horizons]`, by the op's rollout.

        `actions` are `[starts, steps, actions]`; horizon number i is read after `steps[i]` steps.
        """
        of = self.weights
        call = RolloutCall(
            deter=deter,
            stoch=stoch,
            drive=driven(of, actions),
            mixing=of.embedding @ of.mixing,
            recurrent=of.recurrent,
            recurrent_bias=of.recurrent_bias,
            head=(of.prior @ of.prior_logits).mT.contiguous(),
            head_bias=of.prior_bias,
        )
        deters, stochs = rssm_rollout(*call)
        places = [step - 1 for step in steps]
        found = [
            read(of, number, deters[:, :, place], mixed(of.embedding, stochs[:, :, place]))
            for number, place in enumerate(places)
        ]
        return torch.stack(found, -1)


def driven(of: RssmWeights, actions: torch.Tensor) -> torch.Tensor:
    """Return what actions, `[..., actions]`, add to the gates of each member."""
    flat = actions.reshape(-1, ACTIONS)
    found = torch.baddbmm(of.action_bias[:, None], flat.expand(len(of.action), -1, -1), of.action)
    return found.view(len(found), *actions.shape[:-1], found.shape[2])


def prior(of: RssmWeights, deter: torch.Tensor) -> torch.Tensor:
    """Return the logits of the categories before anything is seen."""
    return torch.baddbmm(of.prior_bias[:, None], deter @ of.prior, of.prior_logits)


def posterior(of: RssmWeights, deter: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Return the logits, given inputs `[starts, inputs]` or `[members, starts, inputs]`."""
    both = torch.cat([deter, seen.expand(len(deter), -1, -1)], 2)
    narrow = torch.baddbmm(of.posterior_narrow_bias[:, None], both, of.posterior).tanh()
    return torch.baddbmm(of.posterior_bias[:, None], narrow, of.posterior_logits)


def read(of: RssmWeights, number: int, deter: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
    """Return the corrections at the horizon with this number, `[members, starts]`."""
    weight = of.readout[:, number]
    found = torch.cat([deter, embedded], 2) @ weight[..., None]
    return found[..., 0] + of.readout_bias[:, number, None]
