"""Gradients of streamed blocks, their clipping, and the optimizer's step."""
