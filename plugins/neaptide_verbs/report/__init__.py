"""Reads run directories and shows reports of runs: in a terminal, as a page and as JSON.

This package does not import torch. A naming convention determines which files of plugins are read.
"""
