"""Attention in Triton: the kernels, how they are launched, and the providers' sizes of blocks."""
