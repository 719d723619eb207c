"""A dry run: the code of a run on tensors that have shapes and memory addresses, but no values."""
