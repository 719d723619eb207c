"""Ops of Neaptide: each op has a reference in torch and may have kernels.

Each op has a folder: `reference.py` defines the result, `kernel.py` contains the Triton kernel,
`tuning.py` launches the kernel, and `op.py` registers the op and its providers in
`neaptide_kernels.registry`. Ops also work outside of a run. The import of an op does not import
Triton.
"""
