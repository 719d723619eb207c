"""What `streaming.py` compares."""
