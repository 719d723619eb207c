"""The verbs of the command line.

Like verbs of other distributions, they are found by entry points.
"""
