"""Compare training with and without prediction, at equal backward passes and at equal time."""
