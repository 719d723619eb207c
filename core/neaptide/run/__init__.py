"""One run: the trainer, its session, saving, the run directory, the default parameter store."""
