"""Blocks and their weights: where they come from, where they lie, and when they are fetched."""
