"""What `scale.py` trains, and how it measures."""
