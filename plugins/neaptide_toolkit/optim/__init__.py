"""Base classes of torch optimizers."""
