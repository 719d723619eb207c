"""Rollouts of recurrent state-space models (RSSM): a GRU cell and categorical states, K steps."""

from .op import TRITON, rssm_rollout
from .reference import RolloutCall, gru_cell, mixed, modes
from .tuning import shipped

__all__ = ["TRITON", "RolloutCall", "gru_cell", "mixed", "modes", "rssm_rollout", "shipped"]
