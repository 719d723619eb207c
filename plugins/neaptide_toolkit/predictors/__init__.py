"""Shared parts of predictors: a compact window of sampled weights, and proposals made from it.

A predictor is a plugin that predicts the change of the weights over several updates. Every proposed
change is `sum_i c_i * w_i` over the sampled weights `w_i`, with coefficients `c_i` that sum to
zero. The module `settings` does not import torch. The module `window_predictor` has the hooks.
"""
