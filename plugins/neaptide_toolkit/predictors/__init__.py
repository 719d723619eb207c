"""Shared parts of predictors: a compact window of sampled weights, and proposals made from it.

Every proposal is `sum_i c_i * w_i` over the sampled weights, with coefficients that sum to zero.
`settings` is torch-free; `window_predictor` has the hooks.
"""
