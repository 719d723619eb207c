"""Plugins of ideas that bench/predict.py measures, and that were not worth shipping."""
