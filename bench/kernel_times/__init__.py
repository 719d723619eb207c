"""What `kernels.py` times."""
