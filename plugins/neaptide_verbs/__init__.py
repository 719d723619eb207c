"""The verbs of the command line, found by entry points as a stranger's are."""
