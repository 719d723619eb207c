"""Saves to which each process writes its rows: the files are those that one process writes."""
