"""The checks of `cuda_facts.py`."""
