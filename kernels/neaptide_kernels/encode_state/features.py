"""The names of the 64 features, in the order of the result.

A history is the losses, the gradient norms or the step times of a run. A window contains the newest
samples of a history. Samples that are not finite are ignored. `z` of a number is the number's
distance from the window's mean, in standard deviations (stds). `level` of a number `x` is
`sign(x) * log(1 + |x|)`. If every sample is multiplied by the same positive number, only the
logarithm of seconds and the levels (except the level of the kurtosis) change. A feature is 0 if
the window has too few samples, or if all samples are equal.
"""

from __future__ import annotations

LOSSES, NORMS, SECONDS = 256, 64, 64
"""Number of samples in each window."""
SPANS = (8, 32, 128, 256)
"""Means, deviations and trends are computed over these numbers of newest losses."""
DECAYS = (0.8, 0.95, 0.99)
"""Decays of the exponential averages: a sample's weight divided by the next newer one's weight."""
QUANTILES = (0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95)
SHORTEST_SECONDS = 1e-9

LOSS_FEATURES = (
    "losses_present",  # share of the window that holds finite samples
    "losses_broken",  # share of the samples that are NaN or infinite
    "loss_last",  # level of the newest sample
    "loss_mean",  # level
    "loss_median",  # level
    "loss_least",  # level
    "loss_largest",  # level
    "loss_std",  # level of the standard deviation
    "loss_variation",  # std / (std + |mean|)
    "loss_skewness",  # mean of z ** 3
    "loss_kurtosis",  # level of (mean of z ** 4) - 3
    "loss_p05",  # z of a quantile, interpolated linearly between samples
    "loss_p10",
    "loss_p25",
    "loss_p50",
    "loss_p75",
    "loss_p90",
    "loss_p95",
    "loss_last_z",  # z of the newest sample
    "loss_rank",  # share of the other samples below the newest; equal samples count half
    "loss_since_least",  # age of the least sample, divided by the window's length
    "loss_mean_8",  # z of the mean of the newest 8
    "loss_mean_32",
    "loss_mean_128",
    "loss_std_8",  # std of the newest 8 samples / std of all samples
    "loss_std_32",
    "loss_std_128",
    "loss_rise_8",  # rise of the least-squares line over the newest 8, in stds of all samples
    "loss_rise_32",
    "loss_rise_128",
    "loss_rise_256",
    "loss_fit_8",  # share of the variance that the line explains
    "loss_fit_32",
    "loss_fit_128",
    "loss_fit_256",
    "loss_bend",  # mean z of the thirds: newest - 2 * middle + oldest
    "loss_average_fast",  # z of the exponential averages
    "loss_average_slow",
    "loss_average_slowest",
    "loss_falls",  # share of neighbour pairs whose newer sample is smaller
    "loss_falls_8",  # this share among the newest 8 samples
    "loss_roughness",  # mean distance between neighbours, in stds
    "loss_turns",  # share of inner samples above, or below, both neighbours
    "loss_echo_1",  # autocorrelation of neighbours
    "loss_echo_8",  # autocorrelation of samples 8 apart
)
NORM_FEATURES = (
    "norms_present",
    "norms_broken",
    "norm_last",  # level
    "norm_mean",  # level
    "norm_variation",
    "norm_last_z",
    "norm_rise",  # rise of the line over the window, in stds
)
SECONDS_FEATURES = (
    "seconds_present",
    "seconds_broken",
    "seconds_log_mean",  # natural logarithm of max(mean, 1e-9)
    "seconds_variation",
)
EXTRAS = (
    "log_learning_rate",  # natural logarithm
    "learning_rate_share",  # learning rate / largest learning rate so far
    "beta1",
    "beta2",
    "weight_decay",
    "clipped",  # share of the newest updates with a clipped gradient
    "progress",  # share of the updates that are done
    "since_jump",  # updates since the last jump, divided by the window's length
)
"""Features that the caller computes. The op copies them, but replaces inf and NaN by 0."""
FEATURES = (*LOSS_FEATURES, *NORM_FEATURES, *SECONDS_FEATURES, *EXTRAS)
"""The names of the 64 features, in the order of the result."""
