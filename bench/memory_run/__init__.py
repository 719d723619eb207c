"""What `memory_guide.py` counts and computes."""
