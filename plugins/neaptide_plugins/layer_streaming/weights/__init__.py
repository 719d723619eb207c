"""Blocks and their weights: loading, host buffers, device slots and prefetching."""
