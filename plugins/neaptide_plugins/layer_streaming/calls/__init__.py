"""Calls of a block: a forward without a graph, and a backward that recomputes the forward.

The inputs are stored in between; `graph.py` keeps the graph instead.
"""
