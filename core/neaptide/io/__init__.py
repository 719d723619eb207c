"""Files, streams, units and logging."""
