"""A block's call: its forward without a graph, and its backward that computes it again.

What it was passed waits meanwhile; `graph` keeps the graph instead.
"""
