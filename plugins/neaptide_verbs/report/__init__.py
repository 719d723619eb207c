"""Reports of runs: read from run directories, shown in a terminal, as a page and as JSON.

This package does not import torch. It reads plugins' files by a naming convention.
"""
