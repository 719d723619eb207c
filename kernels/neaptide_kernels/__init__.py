"""Ops of Neaptide: each op has a reference in torch and may have kernels. No op needs a hook.

Each op has a folder: `reference.py` defines the result, `kernel.py` contains the Triton kernel,
`tuning.py` launches the kernel, and `op.py` registers the op and its providers in
`neaptide_kernels.registry`. The import of an op does not import Triton.
"""
