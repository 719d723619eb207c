"""Calls of a block: a forward without a graph, and a backward that recomputes the forward.

Between forward and backward the inputs are stored. In `graph.py` the graph is kept instead.
"""
