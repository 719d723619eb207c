"""Shared parts of predictors: a window of sampled weights, held compactly, and its proposals.

Every proposal is `sum_i c_i * w_i` over the sampled weights, with coefficients that sum to zero.
`settings` is torch-free; `window_predictor` has the hooks.
"""
