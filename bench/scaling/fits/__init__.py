"""What `simulated/fits.py` looks for, and how."""
