"""What `reliability.py` compares."""
