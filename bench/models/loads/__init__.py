"""What `loading.py` loads, and how it measures memory."""
