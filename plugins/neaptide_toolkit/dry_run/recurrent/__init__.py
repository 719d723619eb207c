"""Recurrent layers, as a GPU computes them."""
