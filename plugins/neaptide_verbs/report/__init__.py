"""Reads run directories and shows reports of runs: in a terminal, as a page and as JSON.

This package does not import torch. A naming convention tells it which plugins' files to read.
"""
