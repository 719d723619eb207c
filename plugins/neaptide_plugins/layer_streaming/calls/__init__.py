"""Calls of a block: a forward without a graph, and a backward that recomputes the forward.

Between the two, the inputs are stored. `graph.py` keeps the graph instead.
"""
