"""What `overhead.py` compares."""
