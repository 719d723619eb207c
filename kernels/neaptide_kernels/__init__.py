"""Ops of Neaptide: a reference in torch each, and kernels beside it. They know no hooks.

One folder an op: `reference.py` says what is computed, `kernel.py` is Triton, `tuning.py` how it is
launched, `op.py` joins them to `neaptide_kernels.registry`. Importing an op imports no Triton.
"""
