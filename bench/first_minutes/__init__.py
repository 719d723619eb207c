"""The parts of `gpu.py`."""
