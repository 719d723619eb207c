"""Reports of runs: read from their directories, shown in a terminal, as a page and as JSON.

Nothing here imports torch, and nothing knows a plugin: files are read by convention.
"""
