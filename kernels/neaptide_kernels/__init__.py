"""Ops of Neaptide, each with a reference in torch and optional kernels. Independent of hooks.

One folder per op: `reference.py` defines the result, `kernel.py` is Triton, `tuning.py` launches
it, `op.py` registers both in `neaptide_kernels.registry`. Importing an op imports no Triton.
"""
