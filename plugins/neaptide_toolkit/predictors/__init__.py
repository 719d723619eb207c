"""What predictors share: weights sampled over a window, held compactly, and what is proposed.

Every proposal is `sum_i c_i * w_i` over the sampled weights, with coefficients that add up to zero.
`settings` is torch-free; `window_predictor` has the hooks.
"""
