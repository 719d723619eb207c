"""The verbs of the command line, found by entry points like those of other distributions."""
